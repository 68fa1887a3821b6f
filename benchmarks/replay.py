"""Replays strategies on landscapes that were measured whole: how many trials until they are near the best?

    make replay
    python benchmarks/replay.py --fit ../shared/data --judge ../shared/data --json

Takes any folders of the form of ../shared/data. Where both are the same, the calibration that guided begins with is
fitted to all landscapes (a model on a cluster) but the one that it searches; otherwise to all of --fit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from replay_calibration import calibration_without
from replay_plot import plot
from replay_record import Landscape, landscapes, read_runs
from replay_report import markdown
from replay_strategies import STRATEGIES, Replay, replay_all, within_reach
from replay_summary import NEAR, curve, summaries
from scoreboard import DATA, disjoint

from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.errors import UsageError
from zenith_tune.estimate.calibration import Calibration
from zenith_tune.registry import StrategyRegistry

OUTPUT = Path(__file__).with_name("replay.md")
NUM_SEEDS = 5
Place = tuple[str, tuple[str, str] | None]
"""A framework, and the landscape that its calibration must not have seen."""


def main() -> None:
    """Print how the strategies did, and write it down where the project's own data is judged."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", type=Path, default=DATA, help="folder of the runs to calibrate on")
    parser.add_argument("--judge", type=Path, help="folder of the landscapes [default: that of --fit, in turn]")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--output", type=Path, help="where the page is written [default: beside this file, for --fit]")
    parser.add_argument("--only", default="", help="landscapes whose name holds this")
    parser.add_argument("--strategies", default=",".join(STRATEGIES), help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=NUM_SEEDS, help="of strategies that draw at random")
    options = parser.parse_args()
    try:
        run(options)
    except UsageError as error:
        print(f"replay: {error}", file=sys.stderr)
        sys.exit(2)


def run(options: argparse.Namespace) -> None:
    """Replay, print and write."""
    names = _checked(options)
    fit = read_runs(options.fit)
    same = options.judge is None or options.judge.resolve() == options.fit.resolve()
    fit, judged = (fit, fit) if same else disjoint(fit, read_runs(options.judge))
    found = [landscape for landscape in landscapes(judged) if options.only in landscape.name]
    if not found:
        problem = (
            "a replay needs a landscape, at least 3 layouts of one model on one cluster that ran, but there is none"
        )
        raise UsageError(f"{problem}: give another --judge" + (" or --only" if options.only else ""))
    replays, origins = replay_landscapes(found, fit, names, same=same, num_seeds=options.seeds)
    scores = summaries(replays)
    if options.json:
        json.dump(scores, sys.stdout, indent=1, allow_nan=False)
        print()
    is_own = same and options.fit.resolve() == DATA.resolve() and not options.only and names == STRATEGIES
    output = OUTPUT if options.output is None and is_own else options.output
    text = markdown(scores, origins, {landscape.name: within_reach(landscape, NEAR) for landscape in found})
    if output is not None:
        output.write_text(text, encoding="utf-8")
        output.with_suffix(".svg").write_text(curves(replays), encoding="utf-8")
    if not options.json:
        print(text)


def _checked(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the strategies to replay, or raise UsageError before anything is read."""
    if options.output is not None and not options.output.parent.is_dir():
        raise UsageError(f"--output {options.output} cannot be written", hint="make its folder, or give another file")
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
    return plot(
        {name: curve(items, most) for name, items in own.items() if items},
        title="Behind the best layout, mean over landscapes",
        x_label="trials, crashed ones counted",
        y_label="behind the best (nothing ran yet: 100%)",
    )


if __name__ == "__main__":
    main()
