"""Replays strategies on landscapes that were measured whole: how many trials until they are near the best?

    make replay
    python benchmarks/replay.py --fit data --judge data --json

Takes any folders of measured runs (docs/calibration.md), by default that of ZENITHTUNE_DATA. Where both are the same,
the calibration that guided begins with is fitted to all landscapes (a model on a cluster) but the one that it searches;
otherwise to all of --fit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
from held_out import predict
from places import RESULTS
from replay_landscape import Landscape, landscapes, read_runs
from replay_report import NEAR, curve, markdown, summaries
from replay_strategies import STRATEGIES, Replay, replay_all, within_reach
from scoreboard import parse_options, read_both, run_command

from layoutbench.plots import line_plot
from zenith_calibration.calibrate.framework_fits import families_of
from zenith_calibration.calibrate.memory_fit import fit_memory, usable
from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.calibrate.holdout import LEAST_RUNS, held_out_steps, step_errors
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.robust_fit import folds
from zenith_tune.calibrate.time_family import TimeFamily, family_of
from zenith_tune.calibrate.time_fit import RunTable, TimeFit, with_default_batch
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.errors import UsageError
from zenith_tune.estimates.calibration import Calibration, MemoryCoefficients, TimeCalibration
from zenith_tune.estimates.workload import FloatArray
from zenith_tune.strategies.base import StrategyRegistry

OUTPUT = RESULTS / "replay.md"
NUM_SEEDS = 5
Place = tuple[str, tuple[str, str] | None]
"""A framework, and the landscape that its calibration must not have seen."""


def main() -> None:
    """Print how the strategies did, and write it down where the project's own data is judged."""
    parser = parse_options(__doc__)
    parser.add_argument("--only", default="", help="landscapes whose name holds this")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="of strategies that draw at random")
    run_command("replay", run, parser.parse_args())


def run(options: argparse.Namespace) -> None:
    """Replay, print and write."""
    names = _checked(options)
    fit, other = read_both(options, read_runs)
    same = other is None
    found = [landscape for landscape in landscapes(other or fit) if options.only in landscape.name]
    if not found:
        problem = "a replay needs a landscape, at least 3 layouts of one model on one cluster, but there is none"
        raise UsageError(problem, hint="give another --judge" + (" or --only" if options.only else ""))
    replays, origins = replay_landscapes(found, fit, names, same=same, num_seeds=options.seeds)
    scores = summaries(replays)
    if options.json:
        json.dump(scores, sys.stdout, indent=1, allow_nan=False)
        print()
    is_own = same and options.is_own and not options.only and names == STRATEGIES
    output = OUTPUT if options.output is None and is_own else options.output
    text = markdown(scores, origins, {landscape.name: within_reach(landscape, NEAR) for landscape in found})
    if output is not None:
        output.write_text(text, encoding="utf-8")
        output.with_suffix(".svg").write_text(curves(replays), encoding="utf-8")
    if not options.json:
        print(text)


def _checked(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the strategies to replay, or raise UsageError before anything is read."""
    if options.seeds < 1:
        raise UsageError(f"--seeds must be at least 1, but got {options.seeds}", hint="give 1 or more")
    names = tuple(name for name in options.strategies.split(",") if name)
    for name in names:
        if name not in STRATEGIES:
            StrategyRegistry.get(name)
    return names


def replay_landscapes(
    found: Sequence[Landscape], fit: list[MeasuredRun], names: tuple[str, ...], *, same: bool, num_seeds: int
) -> tuple[list[Replay], dict[str, str]]:
    """Return all replays, and what guided was calibrated on by landscape."""
    places = {item.name: (item.subject.job.framework.name, item.place if same else None) for item in found}
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        distinct = list(dict.fromkeys(places.values())) if "guided" in names else []
        calibrations = dict(zip(distinct, pool.map(partial(_calibrate, fit), distinct), strict=True))
        known = {name: calibrations.get(place, (Calibration(), "")) for name, place in places.items()}
        starts = [known[item.name][0] for item in found]
        one = partial(replay_all, names=names, num_seeds=num_seeds)
        replays = [replay for some in pool.map(one, found, starts) for replay in some]
    return replays, {name: origin for name, (_, origin) in known.items()}


def _calibrate(fit: list[MeasuredRun], place: Place) -> tuple[Calibration, str]:
    framework, left_out = place
    return calibration_without(fit, framework, left_out)


def curves(replays: Sequence[Replay]) -> str:
    """Return the plot: how far behind the best, by number of trials."""
    most = max(replay.num_candidates for replay in replays)
    names = dict.fromkeys(replay.strategy for replay in replays)
    own = {name: [item for item in replays if item.strategy == name and not item.why_not] for name in names}
    return line_plot(
        {name: curve(items, most) for name, items in own.items() if items},
        range(1, most + 1),
        title="Behind the best layout, mean over landscapes",
        x_label="trials, crashed ones counted",
        y_label="behind the best (nothing ran yet: 100%)",
    )


FALLBACK = "megatron"
"""Whose calibration that comes with the package stands for a framework of which no other landscape was measured."""
INNER_FOLDS = 5
"""Parts in which landscapes are left out to see how far a fit is off on others."""


def calibration_without(
    runs: Sequence[MeasuredRun], framework: str, left_out: tuple[str, str] | None
) -> tuple[Calibration, str]:
    """Fit the calibration of a framework to all runs but those of one landscape; says what it was fitted to.

    Neither coefficients nor their errors have seen anything of that landscape.
    """
    others = [run for run in runs if run.landscape != left_out]
    family = family_of(framework)
    timed = next((members for found, members in families_of(others) if found.name == family.name), [])
    if not family.fitted or len(timed) < LEAST_RUNS:
        fallback = replace(default_calibration(FALLBACK), framework=framework)
        return fallback, f"the package's calibration of {FALLBACK}: no other landscape of {framework}"
    weighed = [run for run in others if run.framework == framework and usable(run)]
    memory = fit_memory(weighed, load_framework(framework))
    num_places = len({run.landscape for run in timed})
    return Calibration(
        framework=framework,
        time=_fit_time(family, timed, memory),
        memory=memory,
        origin="measured landscapes",
        num_runs=len(timed),
        num_memory_runs=len(weighed),
    ), f"{len(timed)} runs of {num_places} landscape{'s' if num_places > 1 else ''}"


def _fit_time(family: TimeFamily, runs: list[MeasuredRun], memory: MemoryCoefficients) -> TimeCalibration:
    framework = load_framework(family.name)
    table = RunTable.of([with_default_batch(run) for run in runs], framework)
    fit = TimeFit(family, table, framework, _device_bytes(table.runs, memory))
    errors = step_errors(held_out_steps(fit, folds(table.landscapes, INNER_FOLDS)))
    fitted = fit.calibration(fit.fit())
    return replace(fitted, interval=errors.interval, error_sds=errors.error_sds)


def _device_bytes(runs: list[MeasuredRun], memory: MemoryCoefficients) -> FloatArray:
    """Return what each run is estimated to need of its GPU; 0 where that is not known."""
    found = np.zeros(len(runs))
    for framework in {run.framework for run in runs}:
        rows = [i for i, run in enumerate(runs) if run.framework == framework and usable(run)]
        held = predict([runs[i] for i in rows], memory, framework)
        found[rows] = [item.device_bytes for item in held]
    return found


if __name__ == "__main__":
    main()
