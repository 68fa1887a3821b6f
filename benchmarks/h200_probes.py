"""Probes of cluster layouts on one H200 against the planner, calibrated on other runs each time.

    python benchmarks/h200_probes.py            writes benchmarks/results/h200-probes.md

Every model is predicted by a calibration that has seen none of its runs: the probes of the other models, and the runs
of data/h200 (ZENITHTUNE_DATA) and of the sweep beside this file. The probes themselves are
`zenithtune probe` with the commands that their files state, on the real Megatron-LM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from places import RESULTS, measured_data

from zenith_calibration.calibrate.calibration_fit import fit_calibration
from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_calibration.calibrate.memory_fit import MemoryRows
from zenith_calibration.calibrate.probed_runs import read_probes
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_fit import RunTable
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.estimates.time import stage_time
from zenith_tune.layouts.layout_batch import RECOMPUTE_NAMES
from zenith_tune.units import GIB

FRAMEWORK = "megatron-local"
TARGET = 0.03


@dataclass(frozen=True, slots=True)
class Compared:
    """One probed rank and what was predicted for it."""

    run: MeasuredRun
    memory_bytes: float
    step_s: float

    @property
    def memory_error(self) -> float:
        """Predicted over measured, less 1."""
        return self.memory_bytes / (self.run.memory_bytes or np.nan) - 1

    @property
    def time_error(self) -> float:
        """Predicted over measured, less 1."""
        return self.step_s / (self.run.step_s or np.nan) - 1


def main() -> None:
    """Compare every probe, and write the table."""
    compared = compare(probed(), [*read_measured(measured_data() / "h200"), *swept()])
    text = report(compared)
    print(text)
    (RESULTS / "h200-probes.md").write_text(text, encoding="utf-8")


def probed() -> list[MeasuredRun]:
    """Return the probed ranks."""
    return [run for path in sorted(RESULTS.glob("h200-probes-*/*.json")) for run in read_probes(path)]


def swept() -> list[MeasuredRun]:
    """Return the runs of sweeps and of studies on the same kind of GPU."""
    return [run for path in sorted(RESULTS.glob("h200-*.csv")) for run in read_measured(path)]


def compare(probes: Sequence[MeasuredRun], others: Sequence[MeasuredRun]) -> list[Compared]:
    """Predict each model's probes without any run of the same model."""
    framework = load_framework(FRAMEWORK)
    found = []
    for name in dict.fromkeys(run.model_name for run in probes):
        own = [run for run in probes if run.model_name == name]
        rest = [run for run in (*others, *probes) if run.model_name != name]
        calibration = fit_calibration(rest, framework=FRAMEWORK, origin="other runs", date="").calibration
        memory = MemoryRows.of(own, framework).printed(calibration.memory)
        table = RunTable.of(own, framework)
        coefficients = calibration.time.coefficients_for(gpu="h200", precision="bf16", framework=FRAMEWORK)
        work = (table.workload, table.machine, table.layouts, framework, coefficients)
        steps = stage_time(*work, table.probed_stage).step_s
        found += [Compared(run, float(memory[row]), float(steps[row])) for row, run in enumerate(own)]
    return found


def report(compared: Sequence[Compared]) -> str:
    """Return the table and its summary."""
    lines = [
        "# Probes of cluster layouts on one H200, against the planner",
        "",
        "Written by `python benchmarks/h200_probes.py`. Each row is one rank that ran alone with Megatron-LM's",
        "`--fake-process-group`; predictions come from a calibration that has seen no run of the same model.",
        "",
        "| model | GPUs | layout | stage | peak GiB | predicted | off | work s | predicted | off |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in compared:
        run = each.run
        sizes = " ".join(f"{name.upper()}{run.layout[name]}" for name in ("tp", "pp", "ep") if run.layout[name] > 1)
        kind = RECOMPUTE_NAMES[int(run.layout["recompute"])]
        where = f"| {run.model_name} | {run.num_gpus} | {sizes} {'' if kind == 'none' else kind} | {run.probed_stage} "
        memory = f"| {(run.memory_bytes or 0) / GIB:.2f} | {each.memory_bytes / GIB:.2f} | {each.memory_error:+.1%} "
        time = f"| {run.step_s or 0:.3f} | {each.step_s:.3f} | {each.time_error:+.1%} |"
        lines.append(where + memory + time)
    worst = max(abs(each.memory_error) for each in compared)
    times = [abs(each.time_error) for each in compared]
    lines += [
        "",
        f"Memory: worst {worst:.1%} (target {TARGET:.0%}).",
        f"Work: median {np.median(times):.1%}, worst {max(times):.1%}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
