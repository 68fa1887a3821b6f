"""Student's t distribution, as far as a confidence interval needs it.

The probability is the finite series of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
"""

from __future__ import annotations

import functools
import math
from statistics import NormalDist

_IS_NORMAL = 1000
"""Degrees of freedom from which the distribution is taken for the normal one: they differ by less than 0.1%."""


@functools.lru_cache(maxsize=4096)
def critical_t(error: float, dof: int) -> float:
    """Return the t that |T| exceeds with probability `error`, at `dof` degrees of freedom.

    >>> round(critical_t(0.05, 4), 3), round(critical_t(0.1, 30), 3)
    (2.776, 1.697)
    """
    if dof >= _IS_NORMAL:
        return NormalDist().inv_cdf(1 - error / 2)
    low, high = 0.0, 1.0
    while _inside(high, dof) < 1 - error:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, dof) < 1 - error else (low, middle)
    return high


def _inside(t: float, dof: int) -> float:
    """Return the probability that |T| is at most `t`: A(t|dof) in Abramowitz and Stegun."""
    angle = math.atan(t / math.sqrt(dof))
    is_odd = dof % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = term if dof > 1 else 0.0
    for k in range(3 if is_odd else 2, dof - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total
