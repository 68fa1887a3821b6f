"""The replays as a page: one table of strategies with their targets, and one of landscapes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from replay_record import NUM_STEPS, START_UP_S

Scores = dict[str, Any]
TARGETS: dict[str, dict[str, float]] = {
    "guided": {"trials_to_1pct_mean": 4, "trials_to_1pct_max": 10, "first_pick_median_pct": 5},
    "guided-uncalibrated": {"trials_to_1pct_mean": 8},
}
NAMES = {
    "trials_to_1pct_mean": "trials to 1%, mean",
    "trials_to_1pct_max": "trials to 1%, worst landscape",
    "first_pick_median_pct": "first trial behind the best, median, %",
}
REFERENCES = {"optuna": "14.5", "random": "about 50", "gradient-boosted regression, told which layouts run": "3.1"}
"""Trials to 1% on the Playbook's landscapes that were stated when the targets were set."""
ABOUT = f"""\
Strategies search landscapes (a model on a cluster) that were measured whole, and are answered from the record.

- A trial is one recorded layout, whether it ran or crashed; repeats of a layout are one, its value their median. What
  is not in the record, what its source marks as doubtful, and what the framework's own rules forbid is pruned and costs
  nothing. Runs of accelerate took a step after each micro-batch: they are compared by the time that the same number of
  samples takes.
- A strategy that ends before it is within 1% of the best counts with as many trials as there are layouts. Those that
  draw at random are averaged over seeds.
- A trial costs its GPUs times {START_UP_S:.0f} s and {NUM_STEPS} steps, one that crashes {START_UP_S:.0f} s, where its
  duration was not recorded.
- Guided begins with a calibration, of time and of memory, that was fitted to other landscapes than the one it searches;
  guided-uncalibrated with none. The form of both models, and guided's own constants, were chosen with these landscapes
  at hand.
- Trials to 1% are of a study as its user sees it, which may end before. When one ended by itself, and how far behind
  the best it then was, stands in the last columns."""


def markdown(scores: dict[str, Scores], origins: Mapping[str, str], reach: Mapping[str, bool]) -> str:
    """Write the page; `origins` is what guided was calibrated on, `reach` whether the heuristic may come within 1%."""
    parts = [
        "# Replay",
        f"Written by `make replay` on {date.today().isoformat()}.",
        ABOUT,
        _table(*_overview(scores)),
        "![fraction behind the best against trials](replay.svg)",
        "## Targets",
        _table(("strategy", "what", "ours", "at most", ""), _targets(scores)),
        "For comparison, trials to 1% as stated when these were set: "
        + "; ".join(f"{name} {value}" for name, value in REFERENCES.items())
        + ".",
        *_by_source(scores),
        *_by_landscape(scores, origins),
        *_heuristic(scores.get("megatron-heuristic"), reach),
    ]
    return "\n\n".join(parts) + "\n"


def _overview(scores: dict[str, Scores]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    head = (
        *("strategy", "landscapes", "trials to 1%", "worst", "to 5%", "GPU-hours to 1%", "first trial, median"),
        *("crashed until 1%", "never within 1%", "trials until it stops", "then behind, mean", "worst"),
    )
    return head, [_row(name, found) for name, found in scores.items()]


def _row(name: str, found: Scores) -> tuple[str, ...]:
    if not found["landscapes"]:
        return (name, "0", *[""] * 10)
    return (
        name,
        str(found["landscapes"]),
        f"{found['trials_to_1pct_mean']:.2f}",
        f"{found['trials_to_1pct_max']:.1f}",
        f"{found['trials_to_5pct_mean']:.2f}",
        f"{found['gpu_seconds_to_1pct_mean'] / 3600:.2f}",
        _behind(found["first_pick_median_pct"]),
        f"{found['crashed_before_1pct_mean']:.2f}",
        f"{found['never_within_1pct_pct']:.0f}%",
        *_stopped(found),
    )


def _stopped(found: Scores) -> tuple[str, str, str]:
    if "stopped_after_mean" not in found:
        return "", "", ""
    ends = (found["behind_when_stopped_mean_pct"], found["behind_when_stopped_max_pct"])
    return f"{found['stopped_after_mean']:.1f}", _behind(ends[0]), _behind(ends[1])


def _behind(percent: float | None) -> str:
    return "crashed" if percent is None else f"{percent:.1f}%"


def _targets(scores: dict[str, Scores]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, limits in TARGETS.items():
        for key, limit in limits.items():
            if (value := scores.get(name, {}).get(key)) is not None:
                rows.append((name, NAMES[key], f"{value:.2f}", f"{limit:g}", "met" if value <= limit else "NOT MET"))
    return rows


def _by_source(scores: dict[str, Scores]) -> list[str]:
    sources = sorted({source for found in scores.values() for source in found["by_source"]})
    parts = ["## By source"]
    for source in sources:
        own = {name: found["by_source"][source] for name, found in scores.items() if source in found["by_source"]}
        parts += [f"`{source}`", _table(*_overview(own))]
    return parts


def _by_landscape(scores: dict[str, Scores], origins: Mapping[str, str]) -> list[str]:
    parts = []
    for name in (name for name in scores if name.startswith("guided")):
        own = ("calibrated on",) if name == "guided" else ()
        head = ("landscape", "layouts", "trials to 1%", "to 5%", "first trial", "trials until it stops", "then behind")
        rows = [
            (
                place,
                f"{found['candidates_mean']:.0f}",
                f"{found['trials_to_1pct_mean']:.0f}",
                f"{found['trials_to_5pct_mean']:.0f}",
                _behind(found["first_pick_median_pct"]),
                *_stopped(found)[:2],
                *(origins[place] for _ in own),
            )
            for place, found in scores[name]["by_landscape"].items()
        ]
        parts += [f"## {name.capitalize()}, by landscape", _table((*head, *own), rows)]
    return parts


def _heuristic(found: Scores | None, reach: Mapping[str, bool]) -> list[str]:
    """Say what the heuristic was not replayed on, and what it cannot find."""
    if found is None:
        return []
    mapped = [place for place in reach if place not in found["not_mapped"]]
    beyond = [place for place in mapped if not reach[place]]
    lines = [
        "It has no data parallelism, ZeRO or switch against recomputation to turn, and pp is 1: what it says of "
        "recomputation is ignored where only one way was recorded, ZeRO is 1 where that was recorded, else 0. "
        f"In {len(beyond)} of {len(mapped)} landscapes no layout within 1% of the best is one that it may ask for"
        + (f": {', '.join(beyond)}." if beyond else "."),
        *(f"Not replayed on {place}: {why}." for place, why in found["not_mapped"].items()),
    ]
    return ["## What megatron-heuristic cannot reach", "\n".join(f"- {line}" for line in lines)]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
