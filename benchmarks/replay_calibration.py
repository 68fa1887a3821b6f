"""Calibrations that have not seen the landscape that they are judged on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.calibrate.calibration_fit import LEAST_RUNS
from zenith_tune.calibrate.holdout import families_of, interval, predict, time_residuals
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.memory_fit import fit_memory, usable
from zenith_tune.calibrate.robust_fit import folds
from zenith_tune.calibrate.time_family import TimeFamily, family_of
from zenith_tune.calibrate.time_fit import RunTable, TimeFit, with_default_batch
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.estimate.calibration import Calibration, MemoryCoefficients, TimeCalibration
from zenith_tune.estimate.workload import FloatArray

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
    residuals = time_residuals(fit, folds(table.landscapes, INNER_FOLDS))
    return replace(fit.calibration(fit.fit()), interval=interval(residuals))


def _device_bytes(runs: list[MeasuredRun], memory: MemoryCoefficients) -> FloatArray:
    """Return what each run is estimated to need of its GPU; 0 where that cannot be told."""
    found = np.zeros(len(runs))
    for framework in {run.framework for run in runs}:
        rows = [i for i, run in enumerate(runs) if run.framework == framework and usable(run)]
        held = predict([runs[i] for i in rows], memory, framework)
        found[rows] = [item.device_bytes for item in held]
    return found
