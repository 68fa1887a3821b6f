"""When a trial has told enough: its value is known, or it surely cannot beat the best.

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
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from zenith_tune.direction import Direction
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.location import MIN_SAMPLES, Location, locate
from zenith_tune.evaluators.rank_trend import rank_trend

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
        """Return why the trial may end, its first word being "known" or "behind"; None: it goes on."""
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
