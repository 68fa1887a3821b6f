"""The scores as a page: one table per question, each with its target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import Any

Check = Callable[[dict[str, Any]], bool]
MEMORY_TARGETS: dict[str, tuple[str, Check]] = {
    "h200_megatron_lm_0.20": ("mean 3%, none over 8%", lambda s: s["mean_abs_pct"] <= 3 and s["max_abs_pct"] <= 8),
    "h200_hf_accelerate": ("mean 3%, none over 8%", lambda s: s["mean_abs_pct"] <= 3 and s["max_abs_pct"] <= 8),
    "ultrascale_playbook": ("median 5%", lambda s: s["median_abs_pct"] <= 5),
    "mcore_ci_golden": ("median 8%", lambda s: s["median_abs_pct"] <= 8),
}
SPEED_TARGETS = {
    "llm_foundry": 6,
    "megatron_bridge": 10,
    "dgxc_benchmarking": 10,
    "bloom_prequel": 10,
    "megascale": 10,
    "megatron_sc21": 10,
}
USUAL_TARGET, LEAST_RUNS = 15, 10
"""Of every other source with so many runs or more."""
REASONS = {
    "speed of mbridge_verification_cards": "nearly all are experts on GB200 and GB300; CUDA graphs, overlap and "
    "routing differ from card to card and are not stated",
    "speed of torchtitan": "rows differ in asynchronous tensor parallelism and the pipeline's schedule, "
    "which no column states; pairs that agree in all else are 5 to 25% apart",
}
"""What limits a figure that misses its target."""
LONE = 0.6
"""A run stands alone whose step is less than this share of the predicted one, or the other way round."""
KIND_TARGETS = {"dense": 8, "experts": 15}


def markdown(scores: dict[str, Any], folding: list[dict[str, Any]], guide: list[dict[str, Any]]) -> str:
    """Write the page."""
    parts = [
        "# Scoreboard",
        f"Written by `make scoreboard` on {date.today().isoformat()}. Every figure is of runs that were not fitted to: "
        "first whole sources, below them landscapes (a model on a cluster) are left out in turn, and predicted from "
        "the others. The form of the model "
        "was chosen with the data at hand; so were some constants that no fold fits anew: on how many GPUs nanotron's "
        "network waits (`waiting_gpus`, `unsharded_waiting_gpus`), how far its host runs ahead (`AHEAD`), its "
        "`thrash`, and from which share of the memory on a run slows down.",
        *_left_out(scores.get("left_out_sources")),
        "## Landscapes left out",
        "From here on a model on a cluster is left out at a time, and its source shows its level on others.",
        "## Memory: error of the predicted peak",
        _memory(scores["memory"]),
        "## Fits or not: Ultra-Scale Playbook",
        _fits(scores["fits"]),
        "## Speed: error of the predicted tokens/s",
        _speed(scores["speed"]),
        "## Choice: Ultra-Scale Playbook",
        _choice(scores["choice"]),
        "## Interval: measurements inside the stated 90%",
        _interval(scores["interval"]),
        "## Speed by kind of run: what decides a step",
        _kinds(scores["kinds"]),
        "## Best layouts of MoE Parallel Folding (arXiv 2504.14960, table 3) among all that are planned",
        _folding(folding),
        "## Size guide: ours against the guide's (bf16, sequences of 2K, A100 80 GB)",
        _guide(guide),
        "## Measured runs that were not judged",
        table(("what and why", "runs"), list(scores["left_out"].items())),
    ]
    return "\n\n".join(parts) + "\n"


def _left_out(found: dict[str, Any] | None) -> list[str]:
    """Write what was predicted of whole sources, from the others."""
    if not found or not found["sources"]:
        return []
    sds = ", ".join(f"{name} {sd:.2f}" for name, sd in found["sds"].items())
    about = (
        "A source is what one author measured on a machine with its software: the tables of this project's H200 are "
        "one, and so are those of vTrain. Each is predicted by a calibration fitted to the other sources alone, and "
        "its interval knows of their levels alone. The level is measured over predicted steps at the median, less 1; "
        "`own factor` is the median error that is left once it is divided out. Experts are models that have any; of "
        "the others the host decides where it makes more than half of the predicted step, messages where they are "
        "more than a quarter, and else the GPU's own work."
    )
    spread = f"Standard deviations of a source's level by part, with Student's t of so few sources: {sds}."
    unmeasured = (
        "No other source measured these frameworks on two landscapes or more. They are predicted as the planner "
        "predicts a framework that nobody measured, by Megatron's coefficients, and unfused or eager ones are slower "
        "by any factor: measure them. How many times wider their intervals are (`UNMEASURED`) was chosen with these "
        "runs at hand."
    )
    heads = ("kind", "sources", "runs", "median", "mean", "max", "inside the interval", "target 85 to 95%")
    return [
        "## Sources left out: error of the predicted tokens/s",
        about,
        _sources([each for each in found["sources"] if each["is_measured"]]),
        "## Sources left out: what decides a step",
        table(heads, _source_kinds(found["kinds"]["measured"])),
        spread,
        "## Sources left out whose framework no other measured",
        unmeasured,
        _sources([each for each in found["sources"] if not each["is_measured"]]),
        table(heads, _source_kinds(found["kinds"]["unmeasured"])),
    ]


def _sources(rows: list[dict[str, Any]]) -> str:
    shown = []
    for row in rows:
        limited = row["n"] > LEAST_RUNS and row["is_measured"]
        target = (f"median {USUAL_TARGET}%", _mark(row["median_abs_pct"] <= USUAL_TARGET)) if limited else ("", "")
        figures = (f"{row['level_pct']:+.1f}%", f"{row['own_factor_median_abs_pct']:.1f}%", f"{row['inside_pct']}%")
        shown.append((row["source"], row["framework"], *_errors(row), *figures, *target))
    heads = ("source", "framework", "runs", "median", "mean", "max", "level", "own factor", "inside", "target", "")
    return table(heads, shown)


def _source_kinds(kinds: dict[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for kind, found in kinds.items():
        inside = found["inside_pct"]
        rows.append((kind, str(found["sources"]), *_errors(found), f"{inside}%", _mark(85 <= inside <= 95)))
    return rows


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write a table in Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _mark(holds: bool) -> str:
    return "met" if holds else "NOT MET"


def _errors(scores: dict[str, Any]) -> tuple[str, ...]:
    return (str(scores["n"]), *(f"{scores[name]:.1f}%" for name in ("median_abs_pct", "mean_abs_pct", "max_abs_pct")))


def _memory(scores: dict[str, Any]) -> str:
    rows = []
    for name, found in scores.items():
        target, holds = MEMORY_TARGETS.get(name, ("", None))
        rows.append((name, *_errors(found), target, "" if holds is None else _judged("memory", name, holds(found))))
    return table(("source", "runs", "median", "mean", "max", "target", ""), rows)


def _judged(what: str, name: str, holds: bool) -> str:
    """Return whether a target is met, and why not where that is known."""
    reason = REASONS.get(f"{what} of {name}")
    return _mark(holds) if holds or reason is None else f"{_mark(holds)}: {reason}"


def _speed(scores: dict[str, Any]) -> str:
    rows = []
    for name, found in scores.items():
        limit = SPEED_TARGETS.get(name, USUAL_TARGET if found["n"] >= LEAST_RUNS else None)
        shown = (f"median {limit}%", _judged("speed", name, found["median_abs_pct"] <= limit)) if limit else ("", "")
        rows.append((name, *_errors(found), *shown))
    return table(("source", "runs", "median", "mean", "max", "target", ""), rows)


def _fits(found: dict[str, Any]) -> str:
    if not found["n"]:
        return "No runs."
    rows = [
        (f"right, all {found['n']} runs", f"{found['accuracy_pct']}%", _mark(found["accuracy_pct"] >= 90)),
        ("right, by memory alone, without the framework's own rules", f"{found['memory_alone_pct']}%", ""),
        ("crashes that neither memory nor a rule explains, apart", found["unexplained_crashes"], ""),
        ("right without those", f"{found['accuracy_without_unexplained_pct']}%", ""),
    ]
    return table(("", "share", "target 90%"), rows)


def _choice(found: dict[str, Any]) -> str:
    if not found["landscapes"]:
        return "No landscapes."
    median, mean, rho = (found[name] for name in ("first_pick_median_pct", "first_pick_mean_pct", "spearman_median"))
    head = table(
        ("", "ours", "regression", "target", ""),
        [
            ("first pick behind the best, median", f"{median}%", "8%", "0.5%", _mark(median <= 0.5)),
            ("first pick behind the best, mean", f"{mean}%", "19%", "10%", _mark(mean <= 10)),
            ("rank correlation, median", rho, "0.87", "0.9", _mark(rho > 0.9)),
        ],
    )
    rows = [
        (
            place,
            result["layouts"],
            f"{result['first_pick_pct']}%",
            result["spearman"],
            result["best_over_predicted"],
            result["near_over_predicted"],
            result["pick_over_predicted"],
        )
        for place, result in found["by_landscape"].items()
    ]
    note = "The regression is a gradient-boosted one on the same split. Both know which layouts ran."
    heads = ("landscape", "layouts", "first pick behind", "rank correlation", "best", "its neighbours", "first pick")
    return f"{head}\n\n{note} {_lone(found['by_landscape'])}\n\n" + table(heads, rows)


def _lone(landscapes: dict[str, Any]) -> str:
    """Say which landscapes a run decides that no other makes likely, and what they add to the mean."""
    about = (
        "The last columns are measured over predicted steps: of the best layout, the median of those that are one "
        "change away from it (a size by 2, a pair of sizes, the optimizer), and of the first pick."
    )
    lone = {
        place: result
        for place, result in landscapes.items()
        if result["best_over_predicted"] < LONE * min(result["near_over_predicted"], 1)
        or LONE * result["pick_over_predicted"] > max(result["near_over_predicted"], 1)
    }
    if not lone:
        return about
    names = ", ".join(lone)
    added = sum(result["first_pick_pct"] for result in lone.values()) / len(landscapes)
    return (
        f"{about} In {len(lone)} landscapes ({names}) the best took less than {LONE} times its predicted step, or the "
        f"first pick more than {1 / LONE:.1f} times; its neighbours did not, and nothing that its row states sets it "
        f"apart from them. They make {added:.1f} points of the mean, which counts them all the same."
    )


def _interval(found: dict[str, Any]) -> str:
    names = (("inside_pct", "all"), ("memory_inside_pct", "memory"), ("speed_inside_pct", "speed"))
    rows = [(label, f"{found[key]}%", _mark(85 <= found[key] <= 95)) for key, label in names if found[key] is not None]
    return table(("measurements", "inside", "target 85 to 95%"), rows)


def _kinds(scores: dict[str, Any]) -> str:
    rows = []
    for kind, found in scores.items():
        limit, inside = KIND_TARGETS[kind.partition(",")[0]], found["inside_pct"]
        shown = (f"{inside}%", f"median {limit}%, inside 85 to 95%")
        rows.append((kind, *_errors(found), *shown, _mark(found["median_abs_pct"] <= limit and 85 <= inside <= 95)))
    return table(("kind", "runs", "median", "mean", "max", "inside the interval", "target", ""), rows)


def _folding(rows: list[dict[str, Any]]) -> str:
    names = ("model", "gpus", "seq", "gbs", "layout", "rank", "of")
    shown = [(*(row[name] for name in names), f"{row['behind_pct']}%", _mark(_is_top(row))) for row in rows]
    heads = ("model", "GPUs", "sequence", "batch", "their best layout", "rank", "of", "behind our first")
    return table((*heads, "target top 5"), shown)


def _is_top(row: dict[str, Any]) -> bool:
    return row["rank"] is not None and row["rank"] <= 5


def _guide(rows: list[dict[str, Any]]) -> str:
    shown = [
        (
            row["model"],
            row["gpus"],
            row["batch"],
            row["guide"] + ("" if row["guide_fits"] else " (does not fit)"),
            f"{row['guide_s']:.2f} s",
            row["ours"],
            f"{row['ours_s']:.2f} s",
            f"{row['gain_pct']:+.1f}%",
        )
        for row in rows
    ]
    return table(("model", "GPUs", "batch", "the guide's", "step", "ours", "step", "predicted gain"), shown)
