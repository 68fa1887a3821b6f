"""Where the middle of noisy iterations lies, and how well that is known.

The middle third of the samples is averaged: the mean of what is left when a third is cut off at each end. It lies close
to the median, whose few slow outliers it ignores as well, but has a standard error that a dozen samples can tell.

    n       samples
    g       samples cut off at each end, a third of n
    s_w     standard deviation of the samples with the cut ones set to their nearest kept neighbour
    r       correlation of one iteration with the next, never below 0
    se      s_w / ((1 - 2 g / n) sqrt(n)), at n - 2 g - 1 degrees of freedom
            Tukey and McLaughlin 1963, Less vulnerable confidence and significance procedures, Sankhya A 25
    n_eff   n (1 - r) / (1 + r), independent samples worth as much as n that follow one another
            Bayley and Hammersley 1946, The effective number of independent observations, J. R. Stat. Soc. Suppl. 8
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from zenith_tune.evaluators.student_t import critical_t

MIN_SAMPLES = 6
_MAX_CORRELATION = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Hold the middle of some samples and its standard error."""

    centre: float
    standard_error: float
    dof: int

    def half_width(self, error: float) -> float:
        """Return how far the truth lies from the centre at most, but for a probability of `error`."""
        return critical_t(error, self.dof) * self.standard_error


def locate(values: Sequence[float]) -> Location:
    """Return the mean of the middle third of at least six samples, with its standard error.

    >>> found = locate([10.0, 10.2, 9.8, 10.1, 9.9, 10.0, 30.0, 10.0, 9.9, 10.1])
    >>> round(found.centre, 2), found.dof
    (10.03, 3)
    """
    num = len(values)
    if num < MIN_SAMPLES:
        raise ValueError(f"at least {MIN_SAMPLES} samples are needed to locate their middle, but got {num}")
    ordered, cut = sorted(values), num // 3
    kept = ordered[cut : num - cut]
    nearest = [min(max(value, kept[0]), kept[-1]) for value in ordered]
    mean = statistics.fmean(nearest)
    spread = math.sqrt(sum((value - mean) ** 2 for value in nearest) / (num - 1))
    plain = spread / ((1 - 2 * cut / num) * math.sqrt(num))
    correlation = _correlation(values)
    return Location(
        centre=statistics.fmean(kept),
        standard_error=plain * math.sqrt((1 + correlation) / (1 - correlation)),
        dof=len(kept) - 1,
    )


def _correlation(values: Sequence[float]) -> float:
    """Return how much an iteration takes after the one before, from 0 to 0.9; outliers count as mild ones."""
    ordered, cut = sorted(values), len(values) // 6
    mild = [min(max(value, ordered[cut]), ordered[-1 - cut]) for value in values]
    mean = statistics.fmean(mild)
    total = sum((value - mean) ** 2 for value in mild)
    shared = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(mild))
    # Of independent samples the estimate is -1/n on average.
    found = shared / total + 1 / len(values) if total else 0.0
    return min(max(found, 0.0), _MAX_CORRELATION)
