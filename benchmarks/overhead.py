"""Measures what the tuner itself costs: CPU and wall time per trial beyond the bare command.

Runs the bare command and the same number of trials of it in one process each, with the SQLite record, and compares
inside one run. `--growth` also compares trial 20 with trial 2,000.

    python benchmarks/overhead.py --trials 200
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from datetime import date
from pathlib import Path

from zenith_tune import PresetTuner, TuningPreset
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.duration import DurationEvaluator
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.study.parameters import CategoricalParameter, Parameter, Value
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial
from zenith_tune.tuning.events import StudyListener

COMMAND = "/bin/true"


class TruePreset(TuningPreset):
    """Give every trial of /bin/true an argument of its own, and four more parameters to record."""

    def __init__(self, num_points: int) -> None:
        self._num_points = num_points

    def get_search_space(self) -> dict[str, Parameter]:
        """Return one long axis and four short ones."""
        short: dict[str, Parameter] = {name: CategoricalParameter([1]) for name in ("tp", "pp", "mbs", "ep")}
        return {"index": CategoricalParameter(list(range(self._num_points))), **short}

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return the command with the point's number."""
        return fill_placeholders(command + " {index}", params)[0]

    def get_recommended_strategy(self) -> TuningStrategy:
        """Return the grid."""
        return GridStrategy()

    def evaluator(self) -> TuningEvaluator:
        """Return the run time: /bin/true prints nothing."""
        return DurationEvaluator()


class Clock(StudyListener):
    """Note the time and the CPU used at the end of each trial."""

    def __init__(self) -> None:
        self.marks: list[tuple[float, float]] = []

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        """Note both clocks."""
        self.marks.append((time.perf_counter(), cpu_s()))


def cpu_s() -> float:
    """Return the CPU seconds of this process and of the children that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def bare(num_runs: int) -> tuple[float, float]:
    """Return wall and CPU seconds per bare run."""
    start, start_cpu = time.perf_counter(), cpu_s()
    for index in range(num_runs):
        subprocess.run([COMMAND, str(index)], check=True)
    return (time.perf_counter() - start) / num_runs, (cpu_s() - start_cpu) / num_runs


def tuned(num_trials: int) -> list[tuple[float, float]]:
    """Return wall and CPU seconds of each trial after the first, which pays for start-up."""
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        tuner = PresetTuner(
            COMMAND, TruePreset(num_trials), output_dir=folder, study_name="overhead", baseline=False, listener=clock
        )
        tuner.optimize()
    marks = clock.marks
    return [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(marks)]


def side_by_side(num_trials: int, num_slots: int, sleep_s: float = 1.0) -> float:
    """Return the wall seconds per trial that trials side by side take beyond their own, which they sleep."""
    command = f"/bin/sh -c 'exec sleep {sleep_s}' trial"
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        tuner = PresetTuner(
            command,
            TruePreset(num_trials),
            output_dir=folder,
            study_name="overhead",
            baseline=False,
            listener=clock,
            parallel=num_slots,
        )
        start = time.perf_counter()
        tuner.optimize()
    # The last one is the best, run once more alone.
    makespan = clock.marks[num_trials - 1][0] - start
    return (makespan - sleep_s * num_trials / num_slots) / num_trials


def main() -> None:
    """Print the figures, and write them where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--growth", type=int, default=0, metavar="N", help="also run N trials and compare both ends")
    parser.add_argument("--slots", type=int, default=4, metavar="N", help="how many trials run side by side")
    parser.add_argument("--output", type=Path, help="write the figures and raw rows as JSON")
    options = parser.parse_args()
    wall_bare, cpu_bare = bare(options.trials)
    rows = tuned(options.trials)
    figures: dict[str, object] = {
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "trials": options.trials,
        "bare_wall_ms": wall_bare * 1e3,
        "bare_cpu_ms": cpu_bare * 1e3,
        "overhead_wall_ms": (statistics.fmean(wall for wall, _ in rows) - wall_bare) * 1e3,
        "overhead_cpu_ms": (statistics.fmean(cpu for _, cpu in rows) - cpu_bare) * 1e3,
    }
    if options.slots > 1:
        figures["side_by_side_slots"] = options.slots
        figures["side_by_side_wall_ms"] = side_by_side(options.slots * 10, options.slots) * 1e3
    if options.growth:
        long = tuned(options.growth)
        early, late = long[10:110], long[-100:]
        for name, column in (("wall", 0), ("cpu", 1)):
            before = statistics.median(row[column] for row in early)
            after = statistics.median(row[column] for row in late)
            figures[f"growth_{name}"] = {"first_ms": before * 1e3, "last_ms": after * 1e3, "ratio": after / before}
    for name, value in figures.items():
        print(f"{name:20} {value}")
    if options.output:
        raw = [{"wall_ms": wall * 1e3, "cpu_ms": cpu * 1e3} for wall, cpu in rows]
        options.output.write_text(json.dumps({**figures, "rows": raw}, indent=1) + "\n")


if __name__ == "__main__":
    main()
