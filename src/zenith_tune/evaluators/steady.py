"""The steady state of a training run: which iterations are warm-up, and what the rest shows.

The rule is in docs/study.md, "The value".
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import Any

from zenith_tune.evaluators.base import Measurement
from zenith_tune.study.parameters import Direction
from zenith_tune.study.precision import relative_error

_SPREADS_OF_WARM_UP, _LEAST_WARM_UP, _MOST_WARM_UP = 5, 0.02, 0.10
"""Spreads by which a leading sample is slower than the later ones, and what that is at least and at most."""
_SLOWER_THAN_ONE = 0.05
"""The same where there is one later sample, which has no spread."""
_MAD_TO_SIGMA = 1.4826
_STALL = 0.25
_STALL_SPREADS = 5
_RECURS = 2
_MIN_DRIFT_SAMPLES = 10
_STRETCH = 5


def summarise(
    values: Sequence[float], direction: Direction, *, common_error: float = 0.0, **others: Any
) -> Measurement:
    """Return the measurement of steady samples: a time, or a rate where larger is better; `others` are its fields.

    `common_error` is a relative standard error that all samples share.
    """
    return Measurement(
        value=long_run(values, direction),
        spread=relative_spread(values),
        error=relative_error(values, common_error) if len(values) > 1 and min(values) > 0 else None,
        drift=relative_drift(values),
        num_samples=len(values),
        **others,
    )


def num_warm_up(seconds: Sequence[float]) -> int:
    """Return how many leading samples are warm-up."""
    if len(seconds) < 2:
        return 0
    rest = seconds[1:]
    half = len(rest) // 2
    later = rest[half:]
    slower = _SPREADS_OF_WARM_UP * (relative_spread(later) or 0.0) if len(later) > 1 else _SLOWER_THAN_ONE
    limit = (1 + min(max(slower, _LEAST_WARM_UP), _MOST_WARM_UP)) * statistics.median(later)
    dropped = 0
    while dropped < half and rest[dropped] > limit:
        dropped += 1
    return 1 + dropped


def long_run(values: Sequence[float], direction: Direction = Direction.MINIMIZE) -> float:
    """Return the time, or the rate where larger is better, that a long run has with stalls that recur."""
    middle = statistics.median(values)
    # A rate that is printed as 0 has no time.
    if direction is Direction.MAXIMIZE and min(values) > 0:
        return 1 / (1 / middle + _stalls([1 / value for value in values]))
    return middle + _stalls(values)


def _stalls(seconds: Sequence[float]) -> float:
    """Return what stalls that recur add to an iteration on average."""
    middle = statistics.median(seconds)
    limit = max(_STALL, _STALL_SPREADS * (relative_spread(seconds) or 0.0)) * middle
    is_far = [abs(each - middle) > limit for each in seconds]
    num_stalls = sum(is_in for is_in, _ in itertools.groupby(is_far))
    if num_stalls < _RECURS:
        return 0.0
    return sum(each - middle for each, is_in in zip(seconds, is_far, strict=True) if is_in) / len(seconds)


def relative_spread(values: Sequence[float]) -> float | None:
    """Return 1.4826 * MAD / median, or None for fewer than two values."""
    if len(values) < 2:
        return None
    middle = statistics.median(values)
    deviation = statistics.median(abs(value - middle) for value in values)
    return _MAD_TO_SIGMA * deviation / middle if middle else None


def relative_drift(values: Sequence[float]) -> float | None:
    """Return how far the mean of any five successive values is off the median of all, or None for fewer than ten."""
    middle = statistics.median(values)
    if len(values) < _MIN_DRIFT_SAMPLES or not middle:
        return None
    starts = range(len(values) - _STRETCH + 1)
    return max(abs(statistics.fmean(values[start : start + _STRETCH]) / middle - 1) for start in starts)
