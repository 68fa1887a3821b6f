"""Judge the planner's pipeline schedules on runs that differ in nothing else.

The rows are those of Primus' comparison of schedules (AMD, 2026-02; `primus_*.csv` of ZENITHTUNE_DATA, or any file of
that form given as an argument), whose notes name the schedule. Nothing is fitted to them. As no run of AMD's GPUs was
fitted to either, the level is unknown: what is judged is speed and memory over those of the same model with 1F1B, next
to the plain errors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from places import measured_data

from zenith_calibration.calibrate.measured_rows import read_rows
from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.calibrate.measured_run import MeasuredRun, stack_layouts
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.estimates.step import estimate
from zenith_tune.layouts.layout import SCHEDULES

NAMES = {"zbb": "zero-bubble", "zero-bubble": "zero-bubble", "zbv": "zbv", "zbv-formatted": "zbv"}
"""Primus' names of schedules; those that begin with 1f1b are interleaved, and others are not modelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A run, and what the planner says of it."""

    model: str
    schedule: str
    measured_step_s: float | None
    step_ratio: float
    """Predicted over measured seconds; nan where it did not run, as all that was measured is then."""
    memory_ratio: float
    speedup: tuple[float, float]
    """Predicted and measured speed over that with 1F1B."""
    growth: tuple[float, float]
    """Predicted and measured memory over that with 1F1B."""


def schedule_of(run: MeasuredRun) -> str | None:
    """Return the planner's name of a run's schedule; None where it has none."""
    name = run.notes["schedule"]
    return "1f1b" if name.startswith("1f1b") else NAMES.get(name)


def judge(path: Path) -> Iterator[Judged]:
    """Yield the runs of a file whose schedules the planner knows."""
    first: dict[str, tuple[float, float, float, float]] = {}
    for run in read_rows(path):
        name = schedule_of(run)
        if name is None or run.model is None or run.seq_len is None:
            continue
        framework = load_framework("megatron")
        batch = stack_layouts([{**run.layout, "schedule": SCHEDULES.index(name), "sequence_parallel": False}])
        cluster = load_cluster(f"{run.gpu}x{run.num_gpus}")
        job = JobSpec(seq_len=run.seq_len, framework=framework, precision=run.precision)
        found = estimate(run.model, cluster, job, batch, default_calibration("megatron"))
        step_s, memory = float(found.step_s[0]), float(found.memory_bytes[0])
        measured = (run.step_s or np.nan, run.memory_bytes or np.nan)
        base = first.setdefault(run.model_name, (step_s, memory, *measured))
        yield Judged(
            model=run.model_name,
            schedule=run.notes["schedule"],
            measured_step_s=run.step_s,
            step_ratio=step_s / measured[0],
            memory_ratio=memory / measured[1],
            speedup=(base[0] / step_s, base[2] / measured[0]),
            growth=(memory / base[1], measured[1] / base[3]),
        )


def errors(rows: list[Judged], name: str) -> list[float]:
    """Return the relative errors of `speedup` or `growth`, without those of 1F1B itself and of what did not run."""
    pairs = [getattr(row, name) for row in rows if row.schedule != "1f1b" and row.measured_step_s]
    return [abs(predicted / measured - 1) for predicted, measured in pairs]


def report(rows: list[Judged]) -> str:
    """Return the rows as a table."""
    lines = [
        "| model | schedule | step | memory | speed over 1F1B, measured | predicted | memory, measured | predicted |"
    ]
    lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        plain = [f"{ratio - 1:+.1%}" for ratio in (row.step_ratio, row.memory_ratio)]
        ratios = [f"{value:.3f}" for value in (*row.speedup[::-1], *row.growth[::-1])]
        lines.append(f"| {' | '.join([row.model, row.schedule, *plain, *ratios])} |")
    for name, found in (("speed", errors(rows, "speedup")), ("memory", errors(rows, "growth"))):
        lines.append(f"{name} over 1F1B: {np.median(found):.1%} median, {max(found):.1%} largest of {len(found)}")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path, nargs="?", help="CSV file [default: that of ZENITHTUNE_DATA]")
    given = parser.parse_args().rows
    paths = [given] if given else sorted(measured_data().glob("**/primus_*.csv"))
    if not paths:
        sys.exit("no primus_*.csv in ZENITHTUNE_DATA")
    for path in paths:
        print(report(list(judge(path))))


if __name__ == "__main__":
    main()
