"""Writes the measured figures of README, docs/results.md, gallery.md and guided.md, or checks them with --check."""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README, MEASURED, GALLERY, GUIDED = ROOT / "README.md", DOCS / "results.md", DOCS / "gallery.md", DOCS / "guided.md"
RESULTS = ROOT / "benchmarks" / "results"
BEGIN = "<!-- {}: generated from benchmarks/results/ by `make docs`; do not edit. -->\n"
END = "<!-- End of {}. -->\n"

LEFT_OUT = "## Sources left out: error of the predicted tokens/s"
MOE = "## Best layouts of MoE Parallel Folding (arXiv 2504.14960, table 3) among all that are planned"

Row = dict[str, str]


def newest(pattern: str) -> Path:
    """Return the benchmark of this name with the latest date."""
    return max(RESULTS.glob(pattern))


def markdown_table(path: Path, heading: str) -> list[Row]:
    """Return the first table below a heading of a page, each row by the names of its columns.

    A name that stands twice is followed by its number: `median`, `median 2`.
    """
    below = path.read_text().partition(f"{heading}\n")[2]
    lines = re.findall(r"(?:^\|.*\n)+", below, re.MULTILINE)[0].splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    names = [name if name not in head[:at] else f"{name} {head[:at].count(name) + 1}" for at, name in enumerate(head)]
    return [dict(zip(names, row, strict=True)) for row in rows]


def results() -> str:
    """Return what was measured, each row with a link to where."""
    replay, board = RESULTS / "replay.md", RESULTS / "scoreboard.md"
    rows = [*_gains(newest("h200-levers-*.json")), _trials(replay), _board(newest("layoutbench-*.md")), _fits(board)]
    rows += [_errors(board, LEFT_OUT, "predicted step time of a whole source by the others")]
    rows += [_errors(board, "## Memory: error of the predicted peak", "predicted peak memory")]
    rows += [_errors(board, "## Speed: error of the predicted tokens/s", "predicted step time"), _interval(board)]
    rows += [*_planners(newest("planners-*.json"))]
    rows += [_rate(newest("planner-rate-*.json")), _head_to_head(newest("deepspeed-head-to-head-*") / "result.json")]
    return _table(("measured", "result", "how"), rows)


def headline() -> str:
    """Return what the README shows: the gains, the trials that they take, and how good the memory's prediction is."""
    replay, board = RESULTS / "replay.md", RESULTS / "scoreboard.md"
    memory = _errors(board, "## Memory: error of the predicted peak", "predicted peak memory")
    return _table(("measured", "result", "how"), [*_gains(newest("h200-levers-*.json")), _trials(replay), memory])


def studies() -> dict[str, str]:
    """Return the studies of the gallery by name: the runs of each, and what came of it."""
    levers, long = newest("h200-levers-*.json"), newest("h200-long-steps-*.json")
    content = json.loads(levers.read_text())
    by_job = {each["job"]: each for each in json.loads(long.read_text())["studies"]}
    titan, trainer = newest("h200-torchtitan-study-*.json"), newest("h200-trainer-again-*.json")
    found = {
        "Dense": (levers, content["dense"]),
        "Experts": (levers, content["moe"]),
        "Long steps": (long, by_job["dense 1.6B, sequence 8192"]),
        "torchtitan": (titan, json.loads(titan.read_text())),
        "Trainer": (trainer, json.loads(trainer.read_text())),
    }
    return {name: _study(path, study) for name, (path, study) in found.items()}


def _study(path: Path, study: Mapping[str, Any]) -> str:
    rows = []
    for run in study["runs"]:
        if value := run.get("value"):
            memory = f"{run['peak_memory_bytes'] / 2**30:.1f} GiB"
            rows.append((run["label"], f"{value:,.4g} {run['unit']}" if value < 1000 else f"{value:,.0f} {run['unit']}",
                         f"{run['step_s']:.2f} s", memory))  # fmt: skip
        else:
            rows.append((run["label"], run["outcome"], "", ""))
    summary = study.get("summary", study)
    verdict = summary["verdict"]
    sentence = verdict if isinstance(verdict, str) else verdict["sentence"]
    (gain,) = re.findall(r"^([\d.]+)x faster \(([\d.]+) to ([\d.]+), confirmed", sentence)
    came = "**{}x faster** (90% range {} to {})".format(*gain)
    rest = f" for {summary['gpu_seconds']:.0f} GPU-seconds ({_link(path)})."
    return f"{came}{rest}\n\n{_table(('trial', 'speed', 'step', 'peak memory'), rows)}"


def shortcomings() -> str:
    """Return what is not good yet: every target that is missed, and the worst predictions."""
    replay, board = RESULTS / "replay.md", RESULTS / "scoreboard.md"
    lines = (*_missed(replay, board), *_closer(newest("planners-*.json")), *_worst(board))
    return "".join(f"- {line} ({_link(path)})\n" for path, line in lines)


def _gains(path: Path) -> Iterator[Sequence[str]]:
    content = json.loads(path.read_text())
    for key, name in (("dense", "dense model of 1.5 billion parameters"), ("moe", "mixture of 8 experts")):
        # The runs that confirm the gain come last.
        own, best = ([run for run in content[key]["runs"] if run["is_baseline"] is own and run["value"]][-1]
                     for own in (True, False))  # fmt: skip
        spent_s = content[key]["summary"]["gpu_seconds"]
        given = re.findall(r"--(micro-batch-size|recompute-granularity) (\S+)", content[key]["command"])
        options = ", ".join(f"`--{option} {value}`" for option, value in given)
        what = f"Megatron-LM on one H200, {name}: speed over a command with {options}"
        values = f"{own['value']:,.0f} to {best['value']:,.0f} {own['unit']}"
        yield what, f"**{best['value'] / own['value']:.1f}x** ({values}) for {spent_s:.0f} GPU-seconds", _link(path)


def _trials(path: Path) -> Sequence[str]:
    by_strategy = {row["strategy"]: row for row in markdown_table(path, "# Replay")}
    guided, optuna, random = (by_strategy[name]["trials to 1%"] for name in ("guided", "optuna", "random"))
    num = by_strategy["guided"]["landscapes"]
    what = f"trials until within 1% of the best layout, mean of {num} measured landscapes"
    return what, f"**{guided}**; Optuna's TPE {optuna}, random search {random}", _link(path)


def _board(path: Path) -> Sequence[str]:
    by_tuner = {row["tuner"]: row for row in markdown_table(path, "# LayoutBench leaderboard")}
    ours, ranker, tpe, random = (
        by_tuner[name]["trials to 1%"].partition(" ")[0]
        for name in ("zenithtune-guided", "boosted-ranker", "optuna-tpe", "random")
    )
    what = f"the same on LayoutBench, {by_tuner['random']['landscapes']} landscapes with noise and crashes"
    found = f"**{ours}**; a ranker fitted to the other landscapes {ranker}, Optuna's TPE {tpe}, random search {random}"
    return what, found, _link(path)


def _fits(path: Path) -> Sequence[str]:
    (row,) = (row for row in markdown_table(path, "## Fits or not: Ultra-Scale Playbook") if "all" in row[""])
    num = re.findall(r"\d+", row[""])[0]
    return f"predicted correctly whether a layout fits and runs, {int(num):,} runs", f"**{row['share']}**", _link(path)


def _errors(path: Path, heading: str, what: str) -> Sequence[str]:
    # A source that is a part of another is not counted twice.
    rows = [row for row in markdown_table(path, heading) if " up to " not in row["source"]]
    medians = sorted(float(row["median"].rstrip("%")) for row in rows)
    largest = max(rows, key=lambda row: int(row["runs"]))
    by_source = f"{medians[0]:g}% to {medians[-1]:g}% by source, {sum(int(row['runs']) for row in rows):,} runs"
    found = f"**{largest['median']}** on the largest source ({int(largest['runs']):,} runs); {by_source}"
    return f"{what}, median error on held-out runs", found, _link(path)


def _planners(path: Path) -> Iterator[Sequence[str]]:
    found = list(_against(path, "median_abs_pct"))
    for what, name in (("step", "step time"), ("memory", "peak memory")):
        pairs = [
            f"**{ours:.1f}%** against {theirs:.1f}% of {other} ({num:,} runs)"
            for quantity, other, num, ours, theirs in found
            if quantity == what
        ]
        about = "by other sources alone, median error, against other planners on the runs that each can express"
        yield f"predicted {name} {about}", "; ".join(pairs), _link(path.with_suffix(".md"))


def _against(path: Path, score: str) -> Iterator[tuple[str, str, int, float, float]]:
    """Yield what was predicted, by which other planner, of how many runs, and our score and its own on them."""
    planners: dict[str, Any] = json.loads(path.read_text())["planners"]
    for other, found in planners.items():
        for what, ours in found["same_rows"].items():
            theirs = found["scores"][what]
            if theirs["predicted"]:
                yield what, other, theirs["predicted"], ours[score], theirs[score]


def _closer(path: Path) -> Iterator[tuple[Path, str]]:
    for what, other, num, ours, theirs in _against(path, "median_of_sources_pct"):
        if theirs < ours:
            name = {"step": "speed", "memory": "memory"}[what]
            off = f"{name} off by {ours:.1f}% (median of the sources' medians), {other}'s by {theirs:.1f}%"
            yield path.with_suffix(".md"), f"{num:,} runs, predicted from other sources alone: {off}"


def _interval(path: Path) -> Sequence[str]:
    rows = {row["measurements"]: row for row in markdown_table(path, "## Interval: measurements inside the stated 90%")}
    return "measurements inside the stated 90% interval", f"**{rows['all']['inside']}**", _link(path)


def _rate(path: Path) -> Sequence[str]:
    rates = [case["plan_layouts_per_cpu_s"] for case in json.loads(path.read_text())["cases"]]
    found = f"**{min(rates):,.0f}** to {max(rates):,.0f}"
    return "layouts planned per CPU-second, memory, time and rules", found, _link(path)


def _head_to_head(path: Path) -> Sequence[str]:
    summary: dict[str, Any] = json.loads(path.read_text())["summary"]
    ours, theirs = (sorted(summary[name])[len(summary[name]) // 2] for name in ("our_seconds", "their_seconds"))
    launches = f"{summary['our_launches'][0]} launches against {summary['their_launches'][0]}"
    found = (
        f"**{ours:.0f} s** against {theirs:.0f} s, {launches}; choice {summary['our_speed_over_theirs']:.2f}x as fast"
    )
    return "the same small job as DeepSpeed's own autotuner, on two CPU cores", found, _link(path)


def _missed(replay: Path, board: Path) -> Iterator[tuple[Path, str]]:
    for row in markdown_table(replay, "## Targets"):
        if "NOT MET" in row.values():
            name = row["strategy"].replace("guided-uncalibrated", "guided tuning of a machine without a calibration")
            yield replay, f"{name}: {row['what']}: {row['ours']}, target {row['at most']}"
    for row in markdown_table(board, "## Choice: Ultra-Scale Playbook"):
        if "NOT MET" in row.values():
            yield board, f"the planner alone, without a trial: {row['']}: {row['ours']}, target {row['target']}"
    for row in markdown_table(board, LEFT_OUT):
        if "NOT MET" in row.values():
            off = f"speed off by {row['median']} (median), target {row['target'].removeprefix('median ')}"
            yield board, f"{row['source']}, predicted from other sources alone: {off}"
    for row in markdown_table(board, "## Speed by kind of run: what decides a step"):
        if "NOT MET" in row.values():
            kind, _, decided = row["kind"].partition(", ")
            name = {"host": "the host", "messages": "communication", "work": "computation"}[decided]
            target = row["target"].partition(",")[0].removeprefix("median ")
            off = f"speed off by {row['median']} (median), target {target}"
            yield board, f"{kind} models whose step {name} decides: {off}"
    for row in markdown_table(board, MOE):
        if "NOT MET" in row.values():
            job = f"{row['model']} on {row['GPUs']} GPUs"
            yield board, f"{job}: the published best layout is ranked {row['rank']} of {row['of']}, target top 5"


def _worst(board: Path) -> Iterator[tuple[Path, str]]:
    speed = "## Speed: error of the predicted tokens/s"
    for heading, what in (("## Memory: error of the predicted peak", "memory"), (speed, "speed")):
        rows = [(float(row["max"].rstrip("%")), row["source"]) for row in markdown_table(board, heading)]
        worst, source = max(rows)
        yield board, f"worst single prediction of {what}: off by {worst:,.0f}%, in {source}"


def _link(path: Path) -> str:
    place = path.relative_to(ROOT)
    return f"[{place.parent.name if path.name == 'result.json' else path.name}]({place.as_posix()})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def replayed() -> str:
    """Return how guided tuning does on recorded landscapes, as a sentence."""
    by_strategy = {row["strategy"]: row for row in markdown_table(RESULTS / "replay.md", "# Replay")}
    guided, bare, optuna, random = (by_strategy[name] for name in ("guided", "guided-uncalibrated", "optuna", "random"))
    sentences = (
        f"On {guided['landscapes']} recorded landscapes (Ultra-Scale Playbook on 8 to 512 H100, and one H200),",
        f"calibrated on others only, it needs {guided['trials to 1%']} trials on average to be within 1% of the best,",
        f"and {float(guided['worst']):g} at worst, crashed ones counted. Without a calibration of framework or GPU it",
        f"needs {bare['trials to 1%']} and {float(bare['worst']):g}, Optuna's TPE {optuna['trials to 1%']} on average,",
        f"random points {random['trials to 1%']} ([replay.md](../benchmarks/results/replay.md), `make replay`).",
    )
    return "\n".join(textwrap.wrap(" ".join(sentences), 120)) + "\n"


def render(target: Path, sections: Mapping[str, str]) -> str:
    """Return a page with the results of today's benchmarks."""
    page = target.read_text()
    up = "" if target == README else "../"
    for name, linked in sections.items():
        text = linked.replace("](benchmarks/", f"]({up}benchmarks/")
        begin, end = BEGIN.format(name), END.format(name)
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.partition(end)[2]}"
    return page


def main() -> int:
    """Write the pages, or with --check compare them."""
    pages = {
        README: {"Headline": headline()},
        MEASURED: {"Results": results(), "Shortcomings": shortcomings()},
        GALLERY: studies(),
        GUIDED: {"Replay": replayed()},
    }
    for target, sections in pages.items():
        text = render(target, sections)
        if "--check" not in sys.argv[1:]:
            target.write_text(text)
        elif target.read_text() != text:
            print(f"{target.relative_to(ROOT)} is stale: run `make docs`", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
