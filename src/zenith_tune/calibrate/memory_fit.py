"""Fit the coefficients of the memory model to measured runs of one framework.

Only three numbers move: a factor for activations, one for logits, and the bytes that are always there. The rest is the
account of the framework's code. Where runs may be of the framework's variant, each counts as the nearer of the two.
Errors are those on landscapes that a fit has not seen, where there are enough of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from zenith_tune.calibrate.folds import folds
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.memory_rows import MemoryRows, usable
from zenith_tune.calibrate.robust_fit import robust_fit
from zenith_tune.describe.framework_catalog import load_framework
from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.memory_coefficients import NUM_QUANTILES, MemoryCoefficients
from zenith_tune.units import GIB

PRIOR_SCALE = np.array([0.2, 0.2, 0.3])
"""How far the logarithms of both factors, and the fixed GiB, may be expected to move."""
HUBER_SCALE = 0.03
LEAST_LANDSCAPES = 3
INNER_FOLDS = 5
"""Parts in which landscapes are left out to see how far a fit is off on others."""
APART = 0.1
"""Logarithmic distance from which framework and variant are told apart."""
LEAST_ERROR = 0.002
"""Half of the least interval: what the allocator's rounding alone makes."""


def fit_memory(runs: Sequence[MeasuredRun], framework: FrameworkSpec) -> MemoryCoefficients:
    """Return the coefficients that `runs` of `framework` show; the defaults where none of them states its memory.

    Runs of too few landscapes show how far the account is off, but move nothing in it.
    """
    found = [run for run in runs if run.memory_bytes and usable(run) and not is_low_precision(run)]
    if not found:
        return MemoryCoefficients()
    rows = MemoryRows.of(found, framework)
    places = [run.landscape for run in found]
    num_places = len(set(places))
    if num_places < LEAST_LANDSCAPES:
        start = MemoryCoefficients()
        return replace(start, log_errors=_quantiles(-_errors(rows, start), 1.0 + 1.0 / num_places))
    fitted = _fit(rows)
    held_out = np.empty(len(found))
    for fold in folds(places, INNER_FOLDS):
        held_out[fold] = -_errors(rows.take(fold), _fit(rows.take(~fold)))
    return replace(fitted, log_errors=_quantiles(held_out))


def _fit(rows: MemoryRows) -> MemoryCoefficients:
    """Return the coefficients without their errors."""
    start = MemoryCoefficients()

    def errors(theta: FloatArray) -> FloatArray:
        return _errors(rows, _coefficients(theta, start))

    theta = np.array([0.0, 0.0, start.fixed_bytes / GIB])
    fitted = _coefficients(robust_fit(errors, theta, prior_scale=PRIOR_SCALE, scale=HUBER_SCALE), start)
    middle = shortest_half(np.log(rows.measured_bytes / rows.printed(fitted)))
    return replace(fitted, log_middle=middle, variant_share=_variant_share(rows, fitted))


def shortest_half(values: FloatArray) -> float:
    """Return the middle of the shortest interval that holds half of the values: the least median of squares.

    Rousseeuw, J. Am. Stat. Assoc. 79 (1984). It stays with the larger of two heaps, where a median stands between them.

    >>> shortest_half(np.array([1.0, 1.1, 1.2, 1.3, 5.0, 6.0, 7.0])).__round__(2)
    1.15
    """
    ordered = np.sort(values)
    half = len(ordered) // 2 + 1
    widths = ordered[half - 1 :] - ordered[: len(ordered) - half + 1]
    start = int(widths.argmin())
    return float(ordered[start] + ordered[start + half - 1]) / 2.0


def is_low_precision(run: MeasuredRun) -> bool:
    """Tell whether weights and activations are kept in 8 bits or fewer, of which the account knows nothing."""
    return any(word in run.precision for word in ("fp8", "float8", "fp4"))


def _coefficients(theta: FloatArray, start: MemoryCoefficients) -> MemoryCoefficients:
    activations, logits = np.exp(theta[:2])
    return replace(start, activations=activations, logits=logits, fixed_bytes=np.maximum(theta[2], 0.0) * GIB)


def _errors(rows: MemoryRows, coefficients: MemoryCoefficients) -> FloatArray:
    """Return the logarithm of estimated over measured, of the nearer of framework and variant."""
    here, there = _both_errors(rows, coefficients)
    return np.where(np.abs(here) <= np.abs(there), here, there)


def _variant_share(rows: MemoryRows, coefficients: MemoryCoefficients) -> float:
    here, there = _both_errors(rows, coefficients)
    apart = np.abs(here - there) > APART
    return float((np.abs(there) < np.abs(here))[apart].mean()) if apart.any() else 0.0


def _both_errors(rows: MemoryRows, coefficients: MemoryCoefficients) -> tuple[FloatArray, FloatArray]:
    here = np.log(rows.printed(coefficients) / rows.measured_bytes)
    if not rows.framework.variant:
        return here, here
    variant = replace(rows, framework=load_framework(rows.framework.variant))
    return here, np.log(variant.printed(coefficients) / rows.measured_bytes)


def _quantiles(errors: FloatArray, wider: float = 1.0) -> tuple[float, ...]:
    """Return evenly spaced quantiles, widened for what few runs cannot show."""
    levels = (np.arange(NUM_QUANTILES) + 0.5) / NUM_QUANTILES
    middle = np.median(errors)
    wider *= 1.0 + len(PRIOR_SCALE) / len(errors)
    widened = middle + (np.quantile(errors, levels) - middle) * wider
    least = LEAST_ERROR * (2.0 * levels - 1.0)
    return tuple(float(error) for error in widened + least)
