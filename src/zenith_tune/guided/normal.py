"""The normal distribution, for arrays; SciPy is no part of the base install."""

from __future__ import annotations

import numpy as np

from zenith_tune.estimate.estimate import FloatArray


def normal_density(x: FloatArray) -> FloatArray:
    """Return the density of the standard normal distribution."""
    result: FloatArray = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return result


def normal_below(x: FloatArray) -> FloatArray:
    """Return the probability of a standard normal value below x; off by 7.5e-8 at most.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", formula 26.2.17.

    >>> normal_below(np.array([-1.96, 0.0, 1.96])).round(3).tolist()
    [0.025, 0.5, 0.975]
    """
    t = 1 / (1 + 0.2316419 * np.abs(x))
    terms = (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
    tail = normal_density(x) * t * (terms[0] + t * (terms[1] + t * (terms[2] + t * (terms[3] + t * terms[4]))))
    return np.where(x >= 0, 1 - tail, tail)
