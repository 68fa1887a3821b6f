"""Judge the memory model on runs that it was not fitted to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.memory_fit import fit_memory
from zenith_tune.calibrate.memory_rows import MemoryRows, forbidden, usable
from zenith_tune.describe.framework_catalog import load_framework
from zenith_tune.describe.gpu_catalog import find_gpu, gpu_spec
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.memory_coefficients import MemoryCoefficients
from zenith_tune.estimate.memory_risk import layout_risk, memory_quantiles

MAX_FOLDS = 20
INTERVAL = (0.05, 0.95)
EVEN, CERTAIN = 0.5, 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutMemory:
    """Hold what the model says of one run that it has not seen."""

    run: MeasuredRun
    predicted_bytes: float
    """The middle of the estimate, to compare with the run's own memory."""
    low_bytes: float
    high_bytes: float
    """The 90% interval."""
    fits_probability: float
    """That the fullest rank fits its GPU."""
    device_bytes: float
    """What the fullest rank is estimated to need of its GPU."""
    cannot_run: str | None = None
    """The rule of the framework that forbids the layout whatever the memory."""

    @property
    def runs(self) -> bool:
        """Whether the run is expected to end well."""
        return self.cannot_run is None and self.fits_probability > EVEN

    @property
    def is_unexplained(self) -> bool:
        """Whether the run crashed although no rule forbids it and its memory fits with all but certainty."""
        return self.run.out_of_memory and self.cannot_run is None and self.fits_probability > CERTAIN


def hold_out_memory(
    fit_runs: Sequence[MeasuredRun], judge_runs: Sequence[MeasuredRun] | None = None
) -> list[HeldOutMemory]:
    """Predict `judge_runs` from a fit to `fit_runs`, or each landscape of `fit_runs` from a fit to the others."""
    judged = []
    for framework, fitted, held in _splits(fit_runs, judge_runs):
        judged += predict(held, fit_memory(fitted, load_framework(framework)), framework)
    return judged


def predict(runs: Sequence[MeasuredRun], coefficients: MemoryCoefficients, framework: str) -> list[HeldOutMemory]:
    """Predict runs of one framework."""
    if not runs:
        return []
    c, spec = coefficients, load_framework(framework)
    rows = MemoryRows.of(runs, spec)
    variant = replace(rows, framework=load_framework(spec.variant)) if spec.variant else None
    printed = rows.printed(c)
    low, high = memory_quantiles(printed, INTERVAL, c, variant.printed(c) if variant else None)
    usable_bytes = np.array([usable_memory(run) for run in runs])
    fullest, risk = layout_risk(rows.workload, rows.layouts, spec, c, usable_bytes)
    reasons = [forbidden(run) for run in runs]
    columns = (_floats(part) for part in (printed, low, high, 1.0 - risk, fullest.device_bytes))
    names = ("run", "predicted_bytes", "low_bytes", "high_bytes", "fits_probability", "device_bytes", "cannot_run")
    return [HeldOutMemory(**dict(zip(names, row, strict=True))) for row in zip(runs, *columns, reasons, strict=True)]


def usable_memory(run: MeasuredRun) -> float:
    """Return what the driver reports as the memory of a run's GPU."""
    name = find_gpu(run.gpu)
    return float(gpu_spec(name).memory_bytes) if name else np.inf


def _splits(
    fit_runs: Sequence[MeasuredRun], judge_runs: Sequence[MeasuredRun] | None
) -> Iterator[tuple[str, list[MeasuredRun], list[MeasuredRun]]]:
    """Yield frameworks, the runs to fit and the runs to judge."""
    judge = fit_runs if judge_runs is None else judge_runs
    for framework, fitted in _by_framework(fit_runs).items():
        held = _by_framework(judge).get(framework, [])
        if judge_runs is not None:
            yield framework, fitted, held
            continue
        for fold in _folds(fitted):
            yield framework, [r for r in fitted if r.landscape not in fold], [r for r in fitted if r.landscape in fold]


def _by_framework(runs: Sequence[MeasuredRun]) -> dict[str, list[MeasuredRun]]:
    found = sorted((run for run in runs if usable(run)), key=lambda run: run.framework)
    return {name: list(group) for name, group in groupby(found, key=lambda run: run.framework)}


def _folds(runs: Sequence[MeasuredRun]) -> list[set[tuple[str, str]]]:
    """Return sets of landscapes to leave out one after another: each alone, or in at most MAX_FOLDS sets."""
    landscapes = sorted({run.landscape for run in runs})
    step = min(len(landscapes), MAX_FOLDS)
    return [set(landscapes[start::step]) for start in range(step)]


def _floats(values: FloatArray) -> list[float]:
    return [float(value) for value in values]
