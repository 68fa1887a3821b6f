"""Judge the model of time on runs that it was not fitted to: whole landscapes are left out, one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zenith_tune.calibrate.run_table import RunTable, unusable, with_default_batch
from zenith_tune.calibrate.time_family import TimeFamily, family_of
from zenith_tune.calibrate.time_fit import TimeFit
from zenith_tune.describe.framework_catalog import load_framework
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.measured.measured_run import MeasuredRun

TAIL = 0.05
"""Share of measurements that a 90% interval leaves out at each end."""
FEW = 20
"""Fewer held-out residuals than this say little of the tails, and the interval is widened."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Hold one run and what was predicted of it without having seen its landscape."""

    run: MeasuredRun
    predicted_s: float
    low_s: float
    high_s: float
    """Ends of the 90% interval."""

    @property
    def error(self) -> float:
        """Relative error of the predicted speed: predicted over measured tokens/s, less 1."""
        return (self.run.step_s or np.nan) / self.predicted_s - 1

    @property
    def inside(self) -> bool:
        """Whether the measurement lies in the interval."""
        return self.low_s <= (self.run.step_s or np.nan) <= self.high_s


def families_of(runs: list[MeasuredRun]) -> Iterator[tuple[TimeFamily, list[MeasuredRun]]]:
    """Yield every family with its usable runs."""
    families = {family_of(run.framework).name: family_of(run.framework) for run in runs}
    for family in families.values():
        members = [with_default_batch(run) for run in runs if run.framework in family.frameworks]
        members = [run for run in members if unusable(run) is None]
        if members:
            yield family, members


def hold_out(
    runs: list[MeasuredRun], device_bytes: Mapping[int, float] | None = None
) -> Iterator[tuple[TimeFamily, list[Judged]]]:
    """Judge every usable run by a fit to the other landscapes of its family.

    `device_bytes` is the memory estimated for a run, by id(), likewise without its landscape.
    """
    for family, members in families_of(runs):
        framework = load_framework(family.name)
        table = RunTable.of(members, framework)
        fit = TimeFit(family, table, framework, _bytes_of(members, device_bytes))
        yield family, _cross_validated(fit)


def _bytes_of(runs: list[MeasuredRun], device_bytes: Mapping[int, float] | None) -> FloatArray | None:
    if device_bytes is None or not all(id(run) in device_bytes for run in runs):
        return None
    return np.array([device_bytes[id(run)] for run in runs])


def _cross_validated(fit: TimeFit) -> list[Judged]:
    residuals = time_residuals(fit)
    predicted = fit.table.step_s / np.exp(residuals)
    judged: dict[int, Judged] = {}
    for fold in _folds(fit):
        low, high = np.exp(interval(residuals[~fold]))
        for i in np.flatnonzero(fold):
            value = float(predicted[i])
            judged[int(i)] = Judged(fit.table.runs[i], value, value * float(low), value * float(high))
    return [judged[i] for i in sorted(judged)]


def time_residuals(fit: TimeFit, folds: list[npt.NDArray[np.bool_]] | None = None) -> FloatArray:
    """Return the logarithm of measured over predicted step time of every run, each without its own landscape.

    `folds` says what else to leave out together.
    """
    predicted = np.empty(len(fit.table.runs))
    for fold in folds or _folds(fit):
        predicted[fold] = fit.predict(fit.fit(np.flatnonzero(~fold)))[fold]
    residuals: FloatArray = np.log(fit.table.step_s / predicted)
    return residuals


def _folds(fit: TimeFit) -> list[npt.NDArray[np.bool_]]:
    landscapes = fit.table.landscapes
    return [np.array([place == fold for place in landscapes]) for fold in dict.fromkeys(landscapes)]


def interval(residuals: FloatArray) -> tuple[float, float]:
    """Return the 90% interval of held-out logarithmic residuals; wide where there are few."""
    if len(residuals) == 0:
        return -0.5, 0.5
    widen = 1 + 5 / len(residuals) if len(residuals) < FEW else 1.0
    low, high = np.quantile(residuals, [TAIL, 1 - TAIL])
    return float(low) * widen, float(high) * widen
