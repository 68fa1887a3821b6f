"""Fits with their errors on runs that were not fitted to: whole landscapes are left out in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.robust_fit import folds
from zenith_tune.calibrate.time_family import TimeFamily
from zenith_tune.calibrate.time_fit import RunTable, TimeFit
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.estimates.calibration import ERROR_SOURCES, TimeCalibration
from zenith_tune.estimates.time import TimeEstimate
from zenith_tune.estimates.workload import FloatArray

TAIL = 0.05
"""Share of measurements that a 90% interval leaves out at each end."""
FEW = 20
"""Number of held-out residuals below which the interval is widened."""
LEAST_RUNS = 3
"""Least number of runs to fit time to."""


@dataclass(frozen=True, slots=True)
class HeldOutSteps:
    """Predicted step times of held-out runs and their errors."""

    step_s: FloatArray
    residuals: FloatArray
    """Logarithm of measured over predicted step time."""
    shares: FloatArray
    """Share of the step that each of ERROR_SOURCES decides, one row for each."""

    @classmethod
    def of_estimate(cls, fit: TimeFit, found: TimeEstimate) -> HeldOutSteps:
        """Compare an estimate with the measured step times."""
        return cls(found.step_s, np.log(fit.table.step_s / found.step_s), found.shares)

    def of(self, rows: npt.NDArray[Any]) -> HeldOutSteps:
        return HeldOutSteps(self.step_s[rows], self.residuals[rows], self.shares[:, rows])


def held_out_steps(
    fit: TimeFit, parts: list[npt.NDArray[np.bool_]] | None = None, among: npt.NDArray[np.intp] | None = None
) -> HeldOutSteps:
    """Predict every run without its own landscape.

    `parts` are the folds to leave out in turn; `among` are the runs that may be fitted to.
    """
    size = len(fit.table.runs)
    held = HeldOutSteps(np.full(size, np.nan), np.full(size, np.nan), np.zeros((len(ERROR_SOURCES), size)))
    fitted = np.zeros(size, np.bool_)
    fitted[slice(None) if among is None else among] = True
    for part in parts or folds(fit.table.landscapes):
        found = HeldOutSteps.of_estimate(fit, fit.estimate(fit.fit(np.flatnonzero(~part & fitted))))
        held.step_s[part], held.residuals[part] = found.step_s[part], found.residuals[part]
        held.shares[:, part] = found.shares[:, part]
    return held


SDS: FloatArray = np.geomspace(0.01, 1.5, 24)
"""Standard deviations that are compared."""
USUAL_SPREAD = 0.06
"""Standard deviation of the GPU's own work before any run."""
PRIOR_SD = 0.5
"""Standard deviation of the logarithm of each standard deviation before any run."""
NUM_ROUNDS = 4
"""Rounds of coordinate-wise maximisation, after which nothing changes any more."""
LEAST_END = 0.5
"""Least distance of an interval's ends from the prediction, in standard deviations."""


def step_errors(held: HeldOutSteps, num_places: int = 1) -> TimeCalibration:
    """Return the errors of step times: those of the GPU's own work, and those of each of ERROR_SOURCES.

    They are the likeliest standard deviations of Laplace-distributed errors, so that a few large errors count little.
    `num_places` is how many landscapes were left out in turn; few of them make a wider interval.
    """
    if len(held.residuals) == 0:
        return TimeCalibration(interval=(-0.5, 0.5))
    sds, sd = likeliest_sds(held.residuals, held.shares, np.array([USUAL_SPREAD, *ERROR_SOURCES.values()]))
    low, high = interval(held.residuals / sd, num_places)
    errors = TimeCalibration(interval=(min(low, -LEAST_END) * sds[0], max(high, LEAST_END) * sds[0]))
    # The sources are stated relative to the width of the interval.
    scaled = sds[1:] * errors.spread / sds[0]
    return replace(errors, error_sds=dict(zip(ERROR_SOURCES, scaled.tolist(), strict=True)))


def likeliest_sds(residuals: FloatArray, shares: FloatArray, usual: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the standard deviations of the GPU's own work and of each of ERROR_SOURCES, and that of each residual.

    `usual` is what they are before any run.
    """
    parts, sds = np.vstack([np.ones(len(residuals)), shares]), usual.copy()
    for place in np.tile(np.arange(len(sds)), NUM_ROUNDS):
        tried = np.repeat(sds[None], len(SDS), axis=0)
        tried[:, place] = SDS
        sd = np.sqrt((tried**2) @ parts**2)
        likely = -(np.log(sd) + np.sqrt(2) * np.abs(residuals) / sd).sum(axis=1)
        sds[place] = SDS[np.argmax(likely - (np.log(SDS / usual[place]) / PRIOR_SD) ** 2 / 2)]
    return sds, np.sqrt((sds**2) @ parts**2)


def interval(residuals: FloatArray, num_places: int = 1) -> tuple[float, float]:
    """Return the 90% interval of held-out residuals; wider where they are few, or of few landscapes."""
    widen = 1 + 5 / len(residuals) if len(residuals) < FEW else 1.0
    if num_places > 1:
        widen = max(widen, 1 + 1 / num_places)
    low, high = np.quantile(residuals, [TAIL, 1 - TAIL])
    return float(low) * widen, float(high) * widen


def fit_time(
    runs: list[MeasuredRun], family: TimeFamily, before: TimeCalibration, *, refines: bool
) -> tuple[TimeCalibration, FloatArray]:
    """Return coefficients fitted to usable runs from `before` on, and each run's held-out residual.

    `refines` is whether `before` was fitted to other runs, which count too.
    """
    framework = load_framework(family.name)
    table = RunTable.of(runs, framework)
    fit = TimeFit(family, table, framework, start=before)
    held = held_out_steps(fit, folds(table.landscapes))
    errors = step_errors(held, len(set(table.landscapes)))
    # A few runs move a known interval only part of the way.
    share = min(len(runs) / FEW, 1.0) if refines else 1.0
    low, high = (share * own + (1 - share) * old for own, old in zip(errors.interval, before.interval, strict=True))
    time = replace(
        fit.calibration(fit.fit()),
        interval=(low, high),
        error_sds=errors.error_sds,
        sources=before.sources,
        num_own=before.num_own + len(runs) if refines else 0,
        source_sds=before.source_sds,
    )
    return time, held.residuals
