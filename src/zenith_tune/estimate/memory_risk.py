"""How sure an estimate of memory is: its interval, and the probability that it does not fit.

The distribution of measured over estimated is that of the runs it was calibrated on, kept as quantiles; it is not taken
for normal, since measured memory has a long upper tail.
"""

from __future__ import annotations

import numpy as np

from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.memory_coefficients import MemoryCoefficients


def oom_probability(device_bytes: FloatArray, usable_bytes: FloatArray | float, c: MemoryCoefficients) -> FloatArray:
    """Return the probability that a layout needs more than the device has.

    >>> oom_probability(np.array([60e9, 80e9, 100e9]), 80e9, MemoryCoefficients()).round(2).tolist()
    [0.0, 0.5, 1.0]
    """
    room = np.log(usable_bytes / device_bytes)
    errors = np.asarray(c.log_errors)
    spread = max(c.log_spread, 1e-3)
    points = np.concatenate([[errors[0] - 2 * spread], errors, [errors[-1] + 2 * spread]])
    levels = np.concatenate([[0.0], (np.arange(len(errors)) + 0.5) / len(errors), [1.0]])
    result: FloatArray = 1.0 - np.interp(room, points, levels)
    return result


def memory_quantiles(
    estimated: FloatArray, levels: tuple[float, ...], c: MemoryCoefficients, variant: FloatArray | None = None
) -> FloatArray:
    """Return one row per level: what a measurement stays under with that probability.

    Where runs may be of a variant of the framework, it is a mixture of both, `c.variant_share` of the latter.

    >>> memory_quantiles(np.array([100.0]), (0.05, 0.5, 0.95), MemoryCoefficients()).round(0).ravel().tolist()
    [90.0, 100.0, 111.0]
    """
    errors = np.exp(np.asarray(c.log_errors))
    samples, weights = estimated[:, None] * errors, np.full(len(errors), 1.0)
    if variant is not None and c.variant_share:
        samples = np.concatenate([samples, variant[:, None] * errors], axis=1)
        weights = np.concatenate([weights * (1.0 - c.variant_share), weights * c.variant_share])
    order = samples.argsort(axis=1)
    ordered = np.take_along_axis(samples, order, axis=1)
    heights = weights[order]
    below = (heights.cumsum(axis=1) - heights / 2.0) / weights.sum()
    pairs = list(zip(below, ordered, strict=True))
    return np.array([[np.interp(level, row, values) for row, values in pairs] for level in levels])
