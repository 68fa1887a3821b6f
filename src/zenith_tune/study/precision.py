"""How well the middle of a run's samples is known.

The method and its sources are in docs/study.md, "How a run is ended".
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

_IS_NORMAL = 1000
"""Degrees of freedom from which the normal distribution is used: they differ by less than 0.1%."""
TO_90 = NormalDist().inv_cdf(0.95)
"""Standard errors to either side of a 90% interval."""


@functools.lru_cache(maxsize=4096)
def critical_t(error: float, dof: int) -> float:
    """Return the t that |T| exceeds with probability `error`, at `dof` degrees of freedom."""
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
_FEW = 10
"""Samples below which a middle third is too few for a spread."""


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


def locate(values: Sequence[float]) -> Location:
    """Return the mean of the middle of at least two samples, with its standard error."""
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
    """
    ranks, num = _ranks(values), len(values)
    off = num * ((num - 1) / 2) ** 2  # the sums are those of ranks and times less their common mean
    shared = sum(map(operator.mul, ranks, range(num))) - off
    spread = sum(map(operator.mul, ranks, ranks)) - off
    steps = num * (num**2 - 1) / 12
    return shared / math.sqrt(spread * steps) * math.sqrt(num - 1) if spread else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each sample from 0; equal ones have their mean rank."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    if len(set(values)) == len(values):
        for rank, index in enumerate(order):
            ranks[index] = rank
        return ranks
    start = 0
    for _, group in itertools.groupby(order, key=values.__getitem__):
        equals = list(group)
        for index in equals:
            ranks[index] = start + (len(equals) - 1) / 2
        start += len(equals)
    return ranks


LAUNCHES_ERROR = 0.01
"""Error of a single interval of which 90% hold, where one looks after each of the runs that confirm a gain and takes
up another trial where one fails."""
MACHINES = {0.0015 * 2.0**power: 1.0 for power in range(9)} | {0.8: 0.1, 1.6: 0.03}
"""Standard deviations that the logarithm of the ratio of two launches may have, and how likely each is before a machine
is known. Nine of ten pairs then differ by less than a quarter: of 22 on an H200, most of them with the first run of a
cold or shared machine, 18 differed by less than 20% (benchmarks/results/h200-*, 2026-11-15 to 2026-11-18)."""
MOST_PAIRS, MOST_RATIO = 10_000, 3.0
"""Pairs that a machine can have seen, and the logarithm of the ratio that they can have."""
QUIET = 0.003
"""Relative standard deviation of a run on an H200 that nobody shares; it is worth one pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchNoise:
    """How much two runs of one command differ, by the pairs that were seen."""

    squares: float = 0.0
    """Sum of the squared logarithms of their ratios."""
    num_pairs: int = 0

    @classmethod
    def stored(cls, content: Any) -> LaunchNoise:
        """Return what a file holds; nothing is known by one that holds what no pairs of runs show."""
        try:
            squares, num_pairs = float(content["squares"]), int(content["num_pairs"])
        except (LookupError, OverflowError, TypeError, ValueError):
            return cls()
        is_sound = 0 < num_pairs <= MOST_PAIRS and 0 <= squares <= MOST_RATIO**2 * num_pairs
        return cls(squares=squares, num_pairs=num_pairs) if is_sound else cls()

    @property
    def sd(self) -> float:
        """The relative standard deviation of one run."""
        return math.sqrt((self.squares / 2 + QUIET**2) / (self.num_pairs + 1))

    @property
    def half_width(self) -> float:
        """Half of the 90% interval of the logarithm of the ratio of two runs, by what each kind of machine makes of it.

        Few pairs that agree by chance do not rule out a machine whose launches differ.
        """
        return _half_width(self.squares, self.num_pairs)

    def seen(self, ratios: Iterable[float]) -> LaunchNoise:
        """Return what is known after more pairs, by the logarithms of their ratios."""
        squares = [ratio**2 for ratio in ratios]
        return LaunchNoise(squares=self.squares + sum(squares), num_pairs=self.num_pairs + len(squares))


@functools.lru_cache(maxsize=256)
def _half_width(squares: float, num_pairs: int) -> float:
    likely = [math.log(chance) - num_pairs * math.log(sd) - squares / (2 * sd**2) for sd, chance in MACHINES.items()]
    weights = [math.exp(each - max(likely)) for each in likely]
    error = (LAUNCHES_ERROR if num_pairs else 0.1) * sum(weights)
    low, high = 0.0, 5 * max(MACHINES)
    while high - low > 1e-6:
        middle = (low + high) / 2
        beyond = sum(w * math.erfc(middle / (math.sqrt(2) * sd)) for w, sd in zip(weights, MACHINES, strict=True))
        low, high = (middle, high) if beyond > error else (low, middle)
    return high


LOOKS_ERROR = 0.05
"""Error of a single interval of which 90% hold, where a run ends after a look at each of its iterations."""
LEAST_NOISE = 0.001
"""Least relative noise of an iteration: two may agree by chance, or by how they are printed."""
TREND_ERROR = 1.5
"""Standard error of a value that changes, in differences between the halves of what was seen: a warm-up goes on."""
_TREND = 1.28
"""Rank correlation, in standard deviations, that chance exceeds one time in five."""


def has_trend(values: Sequence[float]) -> bool:
    """Tell whether samples get larger or smaller with time by more than chance."""
    return len(values) > 3 and abs(rank_trend(values)) > _TREND


def relative_error(values: Sequence[float], common: float = 0.0) -> float:
    """Return the relative standard error of the middle of at least two samples above 0.

    Its 90% interval is that of Student's t, and holds a trend that goes on and one more outlier like the largest.
    `common` is an error that all samples share.
    """
    middle, num = statistics.median(values), len(values)
    location = locate([value / middle for value in values])  # no square of a large number is beyond all numbers
    noise = location.half_width(LOOKS_ERROR) / TO_90 / location.centre
    half = num // 2
    trend = statistics.median(values[-half:]) / statistics.median(values[:half]) - 1 if has_trend(values) else 0.0
    pull = max(max(values) / middle - 1, middle / min(values) - 1) / num
    return math.hypot(noise, TREND_ERROR * trend, pull, LEAST_NOISE / math.sqrt(num), common)
