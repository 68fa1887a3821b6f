"""How long the answers are that a model gives: most are short, and a step ends with the longest."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from zenith_tune.errors import UsageError
from zenith_tune.estimates.workload import FloatArray
from zenith_tune.planner.limits import MAX_SEQ

MEDIAN = 0.5
"""Median answer over the limit, where nothing is said."""
_P99 = NormalDist().inv_cdf(0.99)
FORM = "LIMIT, or LIMIT:P50,P99 of the lengths that were seen, e.g. 4096:900,3500"


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLengths:
    """Lengths of answers in tokens: log-normal, cut off at the limit."""

    limit: int
    p50: float
    p99: float
    """What 99% of the answers would be shorter than without the limit."""

    @classmethod
    def parse(cls, text: str) -> AnswerLengths:
        """Read LIMIT or LIMIT:P50,P99."""
        first, colon, rest = text.partition(":")
        try:
            limit = int(first)
            p50, p99 = map(float, rest.split(",")) if colon else (max(limit * MEDIAN, 1.0), float(limit))
        except ValueError:
            raise UsageError(f"--response-len takes {FORM}, but got {text!r}", hint="change it") from None
        if not (1 <= p50 <= p99 <= MAX_SEQ and 1 <= limit <= MAX_SEQ):
            problem = (
                f"--response-len takes whole tokens, up to {MAX_SEQ:,}, and P50 of no more than P99, but got {text!r}"
            )
            raise UsageError(problem, hint=f"write {FORM}")
        return cls(limit=limit, p50=p50, p99=p99)

    @classmethod
    def of_mean(cls, limit: int, mean: float) -> AnswerLengths:
        """Return lengths with a mean, whose longest percent reaches the limit."""
        low, high = 1.0, float(limit)
        for _ in range(60):
            middle = (low + high) / 2
            found = cls(limit=limit, p50=middle, p99=float(limit))
            low, high = (middle, high) if found.mean < mean else (low, middle)
        return cls(limit=limit, p50=low, p99=float(limit))

    def sample(self, count: int) -> FloatArray:
        """Return `count` lengths at equal steps of probability, in an order without a trend."""
        spread = math.log(self.p99 / self.p50) / _P99
        lengths: FloatArray = np.clip(self.p50 * np.exp(spread * _scores(count)), 1.0, self.limit)
        return lengths

    @property
    def mean(self) -> float:
        return float(np.mean(self.sample(999)))


@functools.lru_cache(maxsize=64)
def _scores(count: int) -> FloatArray:
    """Return the quantiles of a normal number, in an order without a trend: steps of the golden ratio."""
    scores = np.array([NormalDist().inv_cdf((number + 0.5) / count) for number in range(count)])
    return scores[np.argsort(np.arange(count) * 0.6180339887498949 % 1.0)]
