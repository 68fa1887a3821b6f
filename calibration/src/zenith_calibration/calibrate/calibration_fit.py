"""A calibration fitted to the measured runs of a framework, with its errors."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from zenith_calibration.calibrate.memory_fit import fit_memory
from zenith_calibration.calibrate.memory_fit import usable as usable_memory
from zenith_tune.calibrate.holdout import LEAST_RUNS, fit_time
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_family import family_of
from zenith_tune.calibrate.time_fit import RELEASE, unusable_by, with_default_batch
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import is_narrow
from zenith_tune.errors import UsageError
from zenith_tune.estimates.calibration import Calibration, TimeCalibration, TimeCoefficients
from zenith_tune.estimates.workload import FloatArray

LEAST_MEMORY_RUNS = 5
"""Least number of runs to fit three memory coefficients and a spread to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFit:
    """A calibration, the runs that it was fitted to and its errors on runs left out."""

    calibration: Calibration
    before: TimeCoefficients
    num_time_runs: int = 0
    num_landscapes: int = 0
    num_memory_runs: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Number of runs without a usable time, by reason."""
    residuals: FloatArray = field(default_factory=lambda: np.empty(0))
    """Logarithm of measured over predicted step time, each run predicted without its landscape."""
    held_out: str = "landscape"
    """What was left out at a time: a landscape (a model on a cluster), or a run where there is only one landscape."""

    @property
    def median_error(self) -> float:
        """Median relative error of predicted step times; nan where time was not fitted."""
        return float(np.median(np.abs(np.expm1(self.residuals)))) if len(self.residuals) else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 90% interval of measured over predicted step time, minus 1."""
        low, high = self.calibration.time.interval
        return math.expm1(low), math.expm1(high)


def fit_calibration(
    runs: Sequence[MeasuredRun], *, framework: str, origin: str, date: str, start: Calibration | None = None
) -> CalibrationFit:
    """Fit the calibration of a framework to its runs among `runs`, refining `start` where it is given."""
    name = load_framework(framework).name
    family = family_of(name)
    reasons = [unusable_by(family, run) for run in runs]
    states_memory = [run.framework == name and _states_memory(run) for run in runs]
    timed = [with_default_batch(run) for run, reason in zip(runs, reasons, strict=True) if reason is None]
    memory_runs = [run for run, states in zip(runs, states_memory, strict=True) if states]
    if len(timed) < LEAST_RUNS and len(memory_runs) < LEAST_MEMORY_RUNS:
        raise _too_few(name, len(timed), Counter(filter(None, reasons)))
    known = start or Calibration(time=TimeCalibration(coefficients=family.start, release=RELEASE))
    has_memory = len(memory_runs) >= LEAST_MEMORY_RUNS
    fit = CalibrationFit(
        calibration=Calibration(
            framework=name,
            time=known.time,
            memory=fit_memory(memory_runs, load_framework(name)) if has_memory else known.memory,
            origin=origin,
            date=date,
            num_memory_runs=len(memory_runs) if has_memory else known.num_memory_runs,
            num_runs=sum(reason is None or states for reason, states in zip(reasons, states_memory, strict=True)),
        ),
        before=known.time.coefficients,
        num_memory_runs=len(memory_runs) if has_memory else 0,
        left_out=Counter(filter(None, reasons)),
    )
    if len(timed) < LEAST_RUNS:
        return fit
    time, residuals = fit_time(timed, family, known.time, refines=start is not None)
    places = {run.landscape for run in timed}
    return replace(
        fit,
        calibration=replace(
            fit.calibration, time=time if start is not None else replace(time, sources=sources_by_gpu(timed))
        ),
        num_time_runs=len(timed),
        num_landscapes=len(places),
        residuals=residuals,
        held_out="run" if len(places) == 1 else "landscape",
    )


def sources_by_gpu(runs: Iterable[MeasuredRun]) -> dict[str, int]:
    """Return how many sources measured each GPU."""
    return dict(sorted(Counter(gpu for gpu, _ in {(run.gpu, run.author) for run in runs}).items()))


def _states_memory(run: MeasuredRun) -> bool:
    # The allocator reserves more than is in use, by an amount that depends on the run.
    allocated = bool(run.memory_bytes) and run.memory_kind != "reserved"
    return allocated and usable_memory(run) and not is_narrow(run.precision)


def _too_few(framework: str, count: int, left_out: Counter[str]) -> UsageError:
    why = "; ".join(f"{number} {reason}" for reason, number in left_out.most_common(3))
    problem = f"a calibration of {framework} must have at least {LEAST_RUNS} runs that state their speed"
    got = f"{count} (left out: {why})" if why else str(count)
    return UsageError(f"{problem}, but got {got}", hint="give more runs, or another --framework")
