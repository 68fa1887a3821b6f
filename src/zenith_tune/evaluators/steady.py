"""The steady state of a training run: which iterations are warm-up, and what the rest says.

The rule. The first printed sample is dropped whenever there are others: it holds compilation, the first allocations
and the optimizer's creation. Of the rest, leading samples are dropped while they are more than 10% slower than the
median of the rest's second half, but never more than half of them. The value is the median of what remains; its spread
is 1.4826 * MAD / median, which equals the relative standard deviation of a normal distribution and ignores outliers.

A single sample is kept, because it is all there is; its spread is unknown and therefore None, not 0.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SLOWER_IS_WARM_UP = 1.10
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Hold one printed step time."""

    iteration: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """Hold the step time of a run once it is warm."""

    step_s: float
    spread: float | None
    """Relative: 0.01 is 1%; None of a single sample."""
    num_samples: int
    num_warm_up: int


def summarise(samples: Sequence[Sample]) -> SteadyState:
    """Drop the warm-up and return median, spread and number of the rest.

    >>> times = [2.4, 1.4, 0.42, 0.41, 0.43, 0.42]
    >>> state = summarise([Sample(iteration=i, seconds=t) for i, t in enumerate(times, start=1)])
    >>> state.step_s, state.num_samples
    (0.42, 4)
    """
    if not samples:
        raise ValueError("there must be at least one sample to summarise")
    seconds = [sample.seconds for sample in samples]
    warm_up = num_warm_up(seconds)
    steady = seconds[warm_up:]
    return SteadyState(
        step_s=statistics.median(steady),
        spread=relative_spread(steady),
        num_samples=len(steady),
        num_warm_up=warm_up,
    )


def num_warm_up(seconds: Sequence[float]) -> int:
    """Return how many leading samples are warm-up, by the rule of this module."""
    if len(seconds) < 2:
        return 0
    rest = seconds[1:]
    half = len(rest) // 2
    limit = SLOWER_IS_WARM_UP * statistics.median(rest[half:])
    dropped = 0
    while dropped < half and rest[dropped] > limit:
        dropped += 1
    return 1 + dropped


def relative_spread(values: Sequence[float]) -> float | None:
    """Return 1.4826 * MAD / median, or None of fewer than two values."""
    if len(values) < 2:
        return None
    middle = statistics.median(values)
    deviation = statistics.median(abs(value - middle) for value in values)
    return _MAD_TO_SIGMA * deviation / middle if middle else None
