"""When a trial has shown enough: its value is known, or it surely cannot beat the best.

Known. The middle of the steady iterations has a confidence interval (`location.py`) of at most 1% to either side: the
fixed-width sequential interval of Chow and Robbins 1965, Ann. Math. Stat. 36. Looking after every iteration gives
chance as many chances, so the error that a single look may make falls with the samples, as 8 (1 - confidence) / n.
The 8 was found by simulation and holds the stated confidence of 90%: of a hundred trials at most ten are ended with a
median more than 1% off the true one, whatever the noise: normal, log-normal, exponential, heavy-tailed, contaminated,
of 0.5% to 15% (`tests/evaluators/test_early_stop_coverage.py`). Of the trials that were ended, 90 in 100 are within 1%
where the run is long enough for its noise; where it is not, few are ended, and those more by chance. Iterations that
take after one another are allowed for up to a point: with a correlation of 0.6 and noise of 2%, 80 in 100 are.

It waits all the same
- while the iterations show a trend: the halves differ by more than one and a half times the precision; or by more than
  a tenth of it, and Spearman's rank correlation with time (Daniels 1950, J. R. Stat. Soc. B 12) is larger than what
  chance gives one time in five;
- while a single iteration moves the mean by more than the precision, such as one that waited for an evaluation or a
  checkpoint: with every tenth iteration three times as slow, that takes 200 iterations.

Behind. The optimistic end of a one-sided interval of 99.9% is behind the best by more than the precision, and the trial
shows no sign of getting better. Such a value is truthful, but less exact.

Where the middle of noisy iterations lies, and how well that is known.

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

Student's t distribution, as far as a confidence interval needs it.

The probability is the finite series of Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import Progress
from zenith_tune.study.parameters import Direction

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


def rank_trend(values: Sequence[float]) -> float:
    """Return Spearman's rank correlation with time, in standard deviations of what chance gives.

    Of samples without a trend it is close to a standard normal number, whatever their distribution.

    >>> round(rank_trend([1.0, 2.0, 3.0, 4.0, 10.0]), 3), rank_trend([7.0] * 5)
    (2.0, 0.0)
    """
    ranks = _ranks(values)
    middle = (len(values) - 1) / 2
    shared = sum((rank - middle) * (time - middle) for time, rank in enumerate(ranks))
    spread = math.sqrt(sum((rank - middle) ** 2 for rank in ranks))
    steps = math.sqrt(sum((time - middle) ** 2 for time in range(len(values))))
    return shared / (spread * steps) * math.sqrt(len(values) - 1) if spread else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each sample from 0; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    for _, group in itertools.groupby(order, key=values.__getitem__):
        equals = list(group)
        for index in equals:
            ranks[index] = start + (len(equals) - 1) / 2
        start += len(equals)
    return ranks


_LOOKS = 8
"""How many times the error of the whole, divided by the number of samples, a single look may make."""
_TREND = 1.28
"""Standard deviations of a rank correlation that chance exceeds one time in five."""
_HALVES_AGREE = 0.1
_HALVES_DIFFER = 1.5
MAX_PRECISION = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """Decide from the steady iterations so far whether a trial may end.

    >>> steady = Progress(values=[100.0, 100.2, 99.9, 100.1] * 3, num_iterations=14)
    >>> EarlyStop().judge(steady, best=None, direction=Direction.MINIMIZE)
    'known within 1% after 14 iterations (90%)'
    >>> EarlyStop(precision=0.0005).judge(steady, best=80.0, direction=Direction.MINIMIZE)
    'behind the best by 25% after 14 iterations (99.9%)'
    """

    precision: float = 0.01
    """Relative: 0.01 is 1%."""
    confidence: float = 0.90
    """How many trials are not ended with a value that is further off than the precision, at least."""
    sure: float = 0.999
    """How sure it must be that a trial is behind the best."""
    min_samples: int = 10

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if not 0 < self.precision <= MAX_PRECISION:
            limit = f"above 0 and at most {MAX_PRECISION * 100:g} percent"
            raise UsageError(f"--early-precision must be {limit}, but got {self.precision * 100:g}")
        for name in ("confidence", "sure"):
            if not 0.5 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must be from 0.5 to less than 1, but got {getattr(self, name)}")
        if self.min_samples < MIN_SAMPLES:
            raise UsageError(f"min_samples must be at least {MIN_SAMPLES}, but got {self.min_samples}")

    def judge(self, progress: Progress, best: float | None, direction: Direction) -> str | None:
        """Return why the trial may end, its first word being "known" or "behind"; None: it continues."""
        values = progress.values
        if len(values) < self.min_samples or min(values) <= 0:
            return None
        location = locate(values)
        after = f"after {progress.num_iterations} iterations"
        if self._is_known(values, location):
            return f"known within {_percent(self.precision)} {after} ({_percent(self.confidence)})"
        if best is not None and best > 0 and self._is_behind(values, location, best, direction):
            gap = abs(statistics.median(values) / best - 1)
            return f"behind the best by {gap:.0%} {after} ({_percent(self.sure)})"
        return None

    def describe(self) -> str:
        """Say in one line when a trial ends early."""
        known = f"known within {_percent(self.precision)} ({_percent(self.confidence)})"
        return f"a trial ends once its value is {known}, or surely behind the best ({_percent(self.sure)})"

    def _is_known(self, values: Sequence[float], location: Location) -> bool:
        middle = statistics.median(values)
        error = min(_LOOKS / len(values), 1) * (1 - self.confidence)
        if location.half_width(error) > self.precision * middle:
            return False
        return not self._drifts(values) and _largest_pull(values) <= self.precision

    def _drifts(self, values: Sequence[float]) -> bool:
        half = len(values) // 2
        first, second = statistics.median(values[:half]), statistics.median(values[-half:])
        apart = abs(second / first - 1) / self.precision
        return apart > _HALVES_DIFFER or (apart > _HALVES_AGREE and abs(rank_trend(values)) > _TREND)

    def _is_behind(self, values: Sequence[float], location: Location, best: float, direction: Direction) -> bool:
        # Of looks after each of 10, 11, 12 ... samples, these errors add up to less than 1 - sure.
        error = _LOOKS / len(values) ** 2 * (1 - self.sure)
        reach = location.half_width(2 * error)
        if direction is Direction.MINIMIZE:
            return location.centre - reach > best * (1 + self.precision) and rank_trend(values) > -_TREND
        return location.centre + reach < best * (1 - self.precision) and rank_trend(values) < _TREND


def _largest_pull(values: Sequence[float]) -> float:
    """Return how far, relatively, one sample moves the mean by itself; as a time or as a rate, whichever is more."""
    middle = statistics.median(values)
    return max(max(values) / middle - 1, middle / min(values) - 1) / len(values)


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.3g}%"
