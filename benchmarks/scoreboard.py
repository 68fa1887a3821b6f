"""Judges the model of memory and time on measured runs that it was not fitted to, and writes the scores down.

    make scoreboard
    python benchmarks/scoreboard.py --fit data --judge data --json

Takes any folders of measured runs (docs/calibration.md), by default that of ZENITHTUNE_DATA. Where both are the same,
whole sources, and below them whole landscapes (a model on a cluster), are left out in turn and predicted from the
others; otherwise all of --fit predicts all of --judge.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from h200_probes import probed, swept
from held_out import HeldOutMemory, Judged, decides, hold_out, hold_out_memory
from left_out_sources import LeftOut, judge_sources, leave_sources_out, source_sds
from places import RESULTS, measured_data
from scoreboard_choice import PLAYBOOK, choice, folding_ranks, size_guide
from scoreboard_report import markdown

from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_fit import unusable
from zenith_tune.errors import UsageError
from zenith_tune.estimates.workload import FloatArray

OUTPUT = RESULTS / "scoreboard.md"
Scores = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Judgement:
    """All judged runs."""

    memory: list[HeldOutMemory]
    speed: list[Judged]
    left_out: dict[str, int]
    """Why measured runs were not judged, and how many."""


def judge(fit: list[MeasuredRun], other: list[MeasuredRun] | None) -> Judgement:
    """Predict runs that were not fitted to: those of `other`, or each landscape of `fit` in turn."""
    memory = hold_out_memory(fit, other)
    known = hold_out_memory(fit) if other is not None else memory
    both = memory if other is None else [*known, *memory]
    speed = [judged for _, found in hold_out(fit, other, both) for judged in found]
    return Judgement(memory, speed, _left_out(fit if other is None else other, memory, speed))


def _left_out(runs: list[MeasuredRun], memory: list[HeldOutMemory], speed: list[Judged]) -> dict[str, int]:
    timed, weighed = {id(item.run) for item in speed}, {id(held.run) for held in memory}
    reasons = [
        f"speed of {run.source}: {unusable(run) or 'of a framework with one landscape, or none, to fit to'}"
        for run in runs
        if run.step_s and id(run) not in timed
    ]
    reasons += [
        f"memory of {run.source}: " + ("marked by its source" if run.flags else "shape or framework not known")
        for run in runs
        if run.memory_bytes and id(run) not in weighed
    ]
    return dict(sorted(Counter(reasons).items()))


def errors(values: list[float]) -> Scores:
    """Summarise relative errors."""
    size = np.abs(values) * 100
    return {
        "n": len(values),
        "median_abs_pct": round(float(np.median(size)), 2),
        "mean_abs_pct": round(float(np.mean(size)), 2),
        "max_abs_pct": round(float(np.max(size)), 1),
    }


def scores(judgement: Judgement) -> Scores:
    """Return all scores as one object."""
    measured = [held for held in judgement.memory if held.run.memory_bytes]
    memory = _by_source(
        [(held.run.source, held.predicted_bytes / (held.run.memory_bytes or 1) - 1) for held in measured]
    )
    speed = _by_source([(item.run.source, item.error) for item in judgement.speed])
    small = [item.error for item in judgement.speed if _is_small_playbook(item.run)]
    if small:
        speed[f"{PLAYBOOK} up to 64 GPUs"] = errors(small)
    return {
        "memory": memory,
        "speed": speed,
        "fits": fits(judgement.memory),
        "choice": choice(judgement.speed, judgement.memory),
        "interval": coverage(measured, judgement.speed),
        "kinds": by_kind(judgement.speed),
        "left_out": judgement.left_out,
    }


def _is_small_playbook(run: MeasuredRun) -> bool:
    return run.source == PLAYBOOK and (run.num_gpus or 0) <= 64


def _by_source(pairs: list[tuple[str, float]]) -> Scores:
    sources = sorted({source for source, _ in pairs})
    return {name: errors([error for source, error in pairs if source == name]) for name in sources}


def fits(memory: list[HeldOutMemory]) -> Scores:
    """Return how often the model is right on whether a run of the Playbook ends well."""
    held = [item for item in memory if item.run.source == PLAYBOOK]
    if not held:
        return {"n": 0, "accuracy_pct": None}
    right = [item.runs != item.run.out_of_memory for item in held]
    apart = [item.is_unexplained for item in held]
    explained = [ok for ok, other in zip(right, apart, strict=True) if not other]
    return {
        "n": len(held),
        "accuracy_pct": round(100 * float(np.mean(right)), 2),
        "memory_alone_pct": round(100 * float(np.mean([_by_memory(item) for item in held])), 2),
        "unexplained_crashes": sum(apart),
        "accuracy_without_unexplained_pct": round(100 * float(np.mean(explained)), 2),
    }


def _by_memory(item: HeldOutMemory) -> bool:
    return (item.fits_probability > 0.5) != item.run.out_of_memory


def coverage(memory: list[HeldOutMemory], speed: list[Judged]) -> Scores:
    """Return how many measurements lie inside the 90% interval."""
    inside_memory = [held.low_bytes <= (held.run.memory_bytes or 0) <= held.high_bytes for held in memory]
    inside_speed = [item.inside for item in speed]
    every = [*inside_memory, *inside_speed]
    return {
        "n": len(every),
        "inside_pct": _share(every),
        "memory_inside_pct": _share(inside_memory),
        "speed_inside_pct": _share(inside_speed),
    }


def by_kind(speed: list[Judged]) -> Scores:
    """Return the errors of each kind of run, and how many lie inside the 90% interval."""
    kinds: dict[str, list[Judged]] = {}
    for item in speed:
        kinds.setdefault(_kind(item), []).append(item)
    return {kind: _with_inside(found) for kind, found in sorted(kinds.items())}


def _kind(item: Judged) -> str:
    """Name what decides a run: the host, messages between ranks, or the GPU's own work; experts are apart."""
    decided = decides(item.shares["host"], item.shares["messages"])
    has_experts = item.run.model is not None and item.run.model.num_experts > 0
    return f"{'experts' if has_experts else 'dense'}, {decided}"


def by_source(cases: list[LeftOut]) -> Scores:
    """Return the errors of sources left out, and how many of their runs lie inside the 90% interval."""
    sources: list[Scores] = []
    kinds: dict[bool, dict[str, list[tuple[Judged, str]]]] = {True: defaultdict(list), False: defaultdict(list)}
    for case, judged in judge_sources(cases):
        level = float(np.median(case.held.residuals))
        sources.append(
            {
                "source": case.author,
                "framework": case.framework,
                "is_measured": case.is_measured,
                "level_pct": round(100 * float(np.expm1(level)), 1),
                "own_factor_median_abs_pct": round(100 * _median_error(case.held.residuals - level), 2),
                **_with_inside(judged),
            }
        )
        for item, kind in zip(judged, case.kinds, strict=True):
            kinds[case.is_measured][kind].append((item, case.author))
    by_kind = {
        name: {
            kind: {"sources": len({author for _, author in found}), **_with_inside([item for item, _ in found])}
            for kind, found in sorted(kinds[is_measured].items())
        }
        for name, is_measured in (("measured", True), ("unmeasured", False))
    }
    return {"sources": sources, "kinds": by_kind, "sds": source_sds(cases) if kinds[True] else {}}


def _median_error(residuals: FloatArray) -> float:
    return float(np.median(np.abs(np.expm1(residuals))))


def _with_inside(judged: list[Judged]) -> Scores:
    return {**errors([item.error for item in judged]), "inside_pct": _share([item.inside for item in judged])}


def _share(flags: list[bool]) -> float | None:
    return round(100 * float(np.mean(flags)), 2) if flags else None


def parse_options(about: str | None) -> argparse.ArgumentParser:
    """Return the options of a benchmark that fits to one folder of measured runs and judges another."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=Path, help="folder of the runs to fit to [default: ZENITHTUNE_DATA]")
    parser.add_argument("--judge", type=Path, help="folder of the runs to judge [default: that of --fit, in turn]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--output", type=Path, help="where the page is written [default: in results/, for ZENITHTUNE_DATA]"
    )
    return parser


def run_command(name: str, run: Callable[[argparse.Namespace], None], options: argparse.Namespace) -> None:
    """Run a benchmark; what its user did wrong is one line and exit code 2."""
    try:
        if options.output is not None and not options.output.parent.is_dir():
            problem = f"--output {options.output} cannot be written"
            raise UsageError(problem, hint="make its folder, or give another file")
        options.is_own = options.fit is None
        options.fit = options.fit or measured_data()
        run(options)
    except UsageError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)


def read_both(
    options: argparse.Namespace, read: Callable[[Path], list[MeasuredRun]]
) -> tuple[list[MeasuredRun], list[MeasuredRun] | None]:
    """Return the runs to fit to, and those to judge; None where they are the same."""
    fit = read(options.fit)
    if options.judge is None or options.judge.resolve() == options.fit.resolve():
        return fit, None
    # Where a folder has some of both, what is judged is not fitted to.
    other = read(options.judge)
    judged = {repr(run) for run in other}
    return [run for run in fit if repr(run) not in judged], other


def run(options: argparse.Namespace) -> None:
    """Print the scores, and write them down where the project's own data is judged."""
    fit, other = read_both(options, read_measured)
    is_own = other is None and options.is_own
    runs = [*fit, *swept(), *probed()] if is_own else fit
    found = scores(judge(runs, other))
    if other is None:
        found["left_out_sources"] = by_source(leave_sources_out(runs))
    if options.json:
        json.dump(found, sys.stdout, indent=1)
        print()
    output = OUTPUT if options.output is None and is_own else options.output
    if options.json and output is None:
        return
    text = markdown(found, folding_ranks(fit), size_guide())
    if output is not None:
        output.write_text(text, encoding="utf-8")
    if not options.json:
        print(text)


if __name__ == "__main__":
    run_command("scoreboard", run, parse_options(__doc__).parse_args())
