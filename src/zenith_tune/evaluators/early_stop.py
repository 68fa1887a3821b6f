"""When a trial has shown enough: its value is known, or it almost certainly cannot beat the best.

The method, its sources and what it was checked against are in docs/study.md, "How early stopping decides".
"""

from __future__ import annotations

import bisect
import functools
import itertools
import math
import operator
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.steady import long_run
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Trial

_IS_NORMAL = 1000
"""Degrees of freedom from which the normal distribution is used: they differ by less than 0.1%."""


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
    """Return the probability that |T| is at most `t`: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(dof))
    is_odd = dof % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = term if dof > 1 else 0.0
    for k in range(3 if is_odd else 2, dof - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if is_odd else math.sin(angle) * total


_MAX_CORRELATION = 0.9
_MEDIAN_VARIANCE = math.pi / 2
"""Variance of the median of many normal samples, in variances of their mean."""
_FEW = 10
"""Samples below which a middle third is too few for a spread, and chance makes them agree too often."""
PRIOR_DOF = 4
"""Degrees of freedom of the study's noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The middle of some samples, and how well it is known."""

    centre: float
    variance: float
    """Variance of the centre, times the number of independent samples."""
    dof: int
    num_independent: float

    @property
    def standard_error(self) -> float:
        """The standard deviation of the centre."""
        return math.sqrt(self.variance / self.num_independent)

    def half_width(self, error: float) -> float:
        """Return the half-width of the confidence interval that misses the truth with probability `error`."""
        return critical_t(error, self.dof) * self.standard_error

    def with_prior(self, noise: float) -> Location:
        """Return the location with a relative noise known beforehand; never less noise than the samples show."""
        prior = _MEDIAN_VARIANCE * (noise * self.centre) ** 2
        pooled = (PRIOR_DOF * prior + self.dof * self.variance) / (PRIOR_DOF + self.dof)
        return replace(self, variance=max(pooled, self.variance), dof=PRIOR_DOF + self.dof)


def locate(values: Sequence[float]) -> Location:
    """Return the mean of the middle of at least two samples, with its standard error.

    >>> found = locate([10.0, 10.2, 9.8, 10.1, 9.9, 10.0, 30.0, 10.0, 9.9, 10.1])
    >>> round(found.centre, 2), round(found.standard_error, 2), found.dof
    (10.03, 0.04, 3)
    """
    num = len(values)
    ordered, cut = sorted(values), num // 3 if num >= _FEW else max(num - 3, 0) // 3
    kept = ordered[cut : num - cut]
    correlation = _correlation(values, ordered)
    mean = statistics.fmean([kept[0]] * cut + kept + [kept[-1]] * cut)
    outside = cut * ((kept[0] - mean) ** 2 + (kept[-1] - mean) ** 2)
    variance = (outside + sum([(value - mean) ** 2 for value in kept])) / (num - 1)
    return Location(
        centre=statistics.fmean(kept),
        variance=variance / (1 - 2 * cut / num) ** 2,
        dof=len(kept) - 1,
        num_independent=num * (1 - correlation) / (1 + correlation),
    )


def _correlation(values: Sequence[float], ordered: Sequence[float]) -> float:
    """Return the correlation of an iteration with the next, from 0 to 0.9; outliers count as mild ones."""
    cut = len(values) // 6
    low, high = ordered[cut], ordered[-1 - cut]
    mild = [low if value < low else high if value > high else value for value in values]
    mean = statistics.fmean(mild)
    off = [value - mean for value in mild]
    total = sum(map(operator.mul, off, off))
    shared = sum(map(operator.mul, off, off[1:]))
    # The estimate is -1/n on average for independent samples.
    found = shared / total + 1 / len(values) if total else 0.0
    return min(max(found, 0.0), _MAX_CORRELATION)


def rank_trend(values: Sequence[float]) -> float:
    """Return Spearman's rank correlation with time, in standard deviations of what chance gives.

    Without a trend it is close to a standard normal number, whatever the distribution of the samples.

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
    """Return the rank of each sample from 0; equal ones have their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    for _, group in itertools.groupby(order, key=values.__getitem__):
        equals = list(group)
        for index in equals:
            ranks[index] = start + (len(equals) - 1) / 2
        start += len(equals)
    return ranks


DEFAULT_NOISE = 0.015
"""Relative noise of a trial, before the study has seen any."""
# Croux and Rousseeuw 1992, Time-efficient algorithms for two highly robust estimators of scale, Compstat 1.
_SMALL_SAMPLE = {2: 1.196, 3: 1.495, 4: 1.363, 5: 1.206, 6: 1.200, 7: 1.140, 8: 1.129, 9: 1.107}
"""Corrections of the median absolute deviation, by number of samples."""


def study_noise(trials: Iterable[Trial]) -> float:
    """Return the relative noise to expect of the next trial: the weighted median of what the earlier ones showed.

    >>> from zenith_tune import Outcome
    >>> seen = [Trial(params={}, outcome=Outcome.OK, spread=0.003, num_samples=12)] * 2
    >>> study_noise([]), round(study_noise(seen), 4)
    (0.015, 0.0032)
    """
    seen = [(DEFAULT_NOISE, PRIOR_DOF)]
    for trial in trials:
        num = trial.num_samples or 0
        # The spread of several runs is the one between them.
        if trial.spread is not None and num > 1 and trial.num_runs == 1:
            seen.append((trial.spread * _SMALL_SAMPLE.get(num, num / (num - 0.8)), num - 1))
    seen.sort()
    below = list(itertools.accumulate(weight for _, weight in seen))
    return seen[bisect.bisect_left(below, below[-1] / 2)][0]


def study_drift(trials: Iterable[Trial]) -> float | None:
    """Return the largest relative drift within an earlier trial; None where none was long enough to show it."""
    return max((trial.drift for trial in trials if trial.drift is not None), default=None)


MIN_KNOWN = 4
"""Fewest samples of a known value: with fewer, a trend cannot be seen."""
MIN_KNOWN_DRIFTING = 20
"""Fewest samples of a known value where runs drift, or have not been shown not to."""
MIN_BEHIND = 2
_LOOKS = 8
"""Error of a single look, in errors of the whole divided by the number of samples."""
_NOISY_TRIAL = 0.05
"""Noise that a trial may have without being ended for it, in however quiet a study."""
_TREND = 1.28
"""Rank correlation, in standard deviations, that chance exceeds one time in five."""
_GETS_BETTER = 1.0
"""Rank correlation that counts as getting better where a trial may be behind: chance exceeds it one time in six."""
_HALVES_AGREE = 0.1
_HALVES_DIFFER = 1.5
_WARM_UP_ITERATIONS = 20
"""Time constant of the slowest warm-up that is not to be mistaken for a slow trial."""
_QUIETEST = 0.005
"""Least noise that is assumed when a warm-up is excluded: two or three samples may agree by chance."""
MAX_PRECISION = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """A rule for when a trial may end, by its steady iterations so far.

    >>> steady = Progress(values=[100.0, 100.2, 99.9, 100.1, 100.0], num_iterations=7)
    >>> EarlyStop().judge(steady, best=None, direction=Direction.MINIMIZE, noise=0.002)
    'known within 1% after 7 iterations (90%)'
    >>> EarlyStop(precision=0.0005).judge(steady, best=50.0, direction=Direction.MINIMIZE, noise=0.002)
    'behind the best by 100% after 7 iterations (99.9%)'
    """

    precision: float = 0.01
    """Relative precision of a known value: 0.01 is 1%."""
    confidence: float = 0.90
    """Least share of trials that are not ended with a value further off than the precision."""
    sure: float = 0.999
    """Confidence that a trial is behind the best."""

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if not 0 < self.precision <= MAX_PRECISION:
            limit = f"above 0 and at most {MAX_PRECISION * 100:g} percent"
            raise UsageError(f"--early-precision must be {limit}, but got {self.precision * 100:g}")
        for name in ("confidence", "sure"):
            if not 0.5 <= getattr(self, name) < 1:
                raise UsageError(f"{name} must be from 0.5 to less than 1, but got {getattr(self, name)}")

    def judge(
        self,
        progress: Progress,
        best: float | None,
        direction: Direction,
        noise: float = DEFAULT_NOISE,
        drift: float | None = 0.0,
    ) -> str | None:
        """Return why the trial may end, its first word being "known" or "behind"; None: it continues.

        `noise` and `drift` are those that the study leads to expect, as `study_noise` and `study_drift` return them.
        """
        values = progress.values
        if len(values) < MIN_BEHIND or min(values) <= 0:
            return None
        location = locate(values)
        after = f"after {progress.num_iterations} iterations"
        may_drift = drift is None or drift > self.precision
        is_long = len(values) >= (MIN_KNOWN_DRIFTING if may_drift else MIN_KNOWN)
        if is_long and self._is_known(progress, location, direction, noise):
            return f"known within {_percent(self.precision)} {after} ({_percent(self.confidence)})"
        if best is not None and best > 0 and self._is_behind(values, location, best, direction, noise):
            gap = abs(long_run(values, direction) / best - 1)
            return f"behind the best by {gap:.0%} {after} ({_percent(self.sure)})"
        return None

    def describe(self) -> str:
        """Say in one line when a trial ends early."""
        known = f"known within {_percent(self.precision)} ({_percent(self.confidence)})"
        worse = f"almost certainly worse than the best ({_percent(self.sure)})"
        return f"a trial ends once its value is {known}, or {worse}"

    def _is_known(self, progress: Progress, location: Location, direction: Direction, noise: float) -> bool:
        values, num = progress.values, len(progress.values)
        error, limit = 1 - self.confidence, self.precision * location.centre
        half_width = location.half_width(error * min(_LOOKS / num, _LOOKS / _FEW * (num / _FEW) ** 2))
        if num < _FEW:
            half_width = max(half_width, location.with_prior(noise).half_width(error * min(_LOOKS / num, 1)))
        if half_width > limit or self._drifts(values) or _largest_pull(values) > self.precision:
            return False
        return progress.value is None or abs(progress.value - long_run(values, direction)) <= limit / 2

    def _drifts(self, values: Sequence[float]) -> bool:
        half = len(values) // 2
        first, second = statistics.median(values[:half]), statistics.median(values[-half:])
        apart = abs(second / first - 1) / self.precision
        return apart > _HALVES_DIFFER or (apart > _HALVES_AGREE and abs(rank_trend(values)) > _TREND)

    def _is_behind(
        self, values: Sequence[float], location: Location, best: float, direction: Direction, noise: float
    ) -> bool:
        # The errors of looks after 2, 3, 4 ... samples add up to more than 1 - sure, but the first are hardly made,
        # since few trials are as noisy as is assumed here.
        error = min(_LOOKS / len(values) ** 2, 1) * (1 - self.sure)
        reach = location.with_prior(max(noise, _NOISY_TRIAL)).half_width(2 * error)
        gap = direction.sign * (location.centre - best)
        if gap - reach <= self.precision * best or direction.sign * rank_trend(values) <= -_GETS_BETTER:
            return False
        fall = -direction.sign * statistics.linear_regression(range(len(values)), values).slope
        prior = location.with_prior(max(noise, _QUIETEST))
        # The standard error of a least-squares slope, for noise of the prior's size.
        num = len(values)
        slope_error = math.sqrt(prior.variance / _MEDIAN_VARIANCE * 12 / (num**3 - num))
        unsure = critical_t(2 * (1 - self.sure), prior.dof) * slope_error
        return fall + unsure < gap / _WARM_UP_ITERATIONS


def _largest_pull(values: Sequence[float]) -> float:
    """Return how far, relatively, a single sample moves the mean, as a time or as a rate, whichever is more."""
    middle = statistics.median(values)
    return max(max(values) / middle - 1, middle / min(values) - 1) / len(values)


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.3g}%"
