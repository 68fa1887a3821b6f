"""Fit a handful of coefficients to measurements, some of which are wrong: damped Gauss-Newton under Huber's loss.

Huber, "Robust Estimation of a Location Parameter", Ann. Math. Statist. 35 (1964); Levenberg-Marquardt damping. A prior
pulls each coefficient toward its start, so that coefficients that the data does not determine stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from zenith_tune.estimates.workload import FloatArray
from zenith_tune.layouts.layout_batch import BoolArray

Residuals = Callable[[FloatArray], FloatArray]

_STEP = 1e-4
_MAX_DAMPING = 1e8
_MOST_ITERATIONS = 60
_LEAST_GAIN = 1e-9
"""Relative gain below which a fit ends; at 1e-6 some fits stop in a flat valley short of the best."""


def robust_fit(residuals: Residuals, start: FloatArray, *, prior_scale: FloatArray, scale: float = 0.1) -> FloatArray:
    """Return the coefficients that make `residuals` small.

    Residuals beyond `scale` count by their size instead of their square. `prior_scale` is the expected change of each
    coefficient from `start`, in its own unit. For the slopes `residuals` gets many vectors at once, each coefficient as
    a column of shape (k, 1), and returns a row for each of the k.
    """
    theta, damping = start.astype(np.float64), 1e-2
    errors = residuals(theta)
    loss = _loss(errors, theta, start, prior_scale, scale)
    for _ in range(_MOST_ITERATIONS):
        normal, gradient = _normal_equations(residuals, theta, errors, start, prior_scale, scale)
        while damping < _MAX_DAMPING:
            trial = theta - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial_errors = residuals(trial)
            trial_loss = _loss(trial_errors, trial, start, prior_scale, scale)
            if trial_loss < loss:
                break
            damping *= 4
        else:
            return theta
        gain = loss - trial_loss
        theta, errors, loss, damping = trial, trial_errors, trial_loss, damping / 4
        if gain < _LEAST_GAIN * max(loss, 1.0):
            return theta
    return theta


def _loss(errors: FloatArray, theta: FloatArray, start: FloatArray, prior_scale: FloatArray, scale: float) -> float:
    size = np.abs(errors) / scale
    huber = np.where(size <= 1, size**2 / 2, size - 0.5).sum()
    total = float(huber + (((theta - start) / prior_scale) ** 2).sum() / 2)
    return total if np.isfinite(total) else np.inf


def _normal_equations(
    residuals: Residuals,
    theta: FloatArray,
    errors: FloatArray,
    start: FloatArray,
    prior_scale: FloatArray,
    scale: float,
) -> tuple[FloatArray, FloatArray]:
    steps = _STEP * np.maximum(np.abs(theta), 1.0)
    moved = theta[:, None] + np.diag(steps)
    jacobian = ((residuals(moved[:, :, None]) - errors) / steps[:, None]).T
    weights = 1 / np.maximum(np.abs(errors), scale) / scale
    normal = jacobian.T @ (weights[:, None] * jacobian) + np.diag(prior_scale**-2)
    gradient = jacobian.T @ (weights * errors) + (theta - start) / prior_scale**2
    return normal, gradient


MAX_FOLDS = 20


def folds(places: Sequence[Hashable], most: int = MAX_FOLDS) -> list[BoolArray]:
    """Return which runs to leave out, one fold after another: whole places, or single runs where there is one place."""
    units: Sequence[Hashable] = range(len(places)) if is_one_place(places) else places
    kinds = list(dict.fromkeys(units))
    number = {kind: i % most for i, kind in enumerate(kinds)}
    fold_of = np.array([number[unit] for unit in units])
    return [fold_of == fold for fold in range(min(len(kinds), most))]


def is_one_place(places: Sequence[Hashable]) -> bool:
    """Tell whether all runs are of one place, so that only single runs can be left out."""
    return len(set(places)) == 1
