"""When a run may end: once its next iteration costs more than it is worth.

Another iteration is worth what a better-known value saves on average: hours of training with the slower of two layouts
that were taken for one another. Both are counted in seconds of the same GPUs. The formula, its source and what it was
checked against are in docs/study.md, "How a run is ended".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import NormalDist

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import Progress
from zenith_tune.study.budget import Training
from zenith_tune.study.parameters import Direction
from zenith_tune.study.precision import TO_90, LaunchNoise, has_trend
from zenith_tune.study.trial import Prediction, Trial

MIN_SAMPLES = 2
LONG_SAMPLES, LONG_S = 20, 10.0
"""Steady iterations, or seconds of them, after which a run that drifts or warms up has shown it."""
NEXT_SHARE, NEXT_SD = 0.3, 0.1
"""Chance that a layout comes that is compared with the best one, and how far, relatively, it is from it."""
SURE = 3.0
"""Standard errors by which a run is behind."""
MOST_ERROR = 0.15
"""Relative error that a value hardly ever has after two steady iterations, however little these agree."""
MAX_PRECISION = 0.5
DRIFTS = 0.01
"""Relative drift within a run that counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What depends on the value of a run."""

    best: Trial | None = None
    """The best run so far."""
    predicted: Prediction | None = None
    """The fastest layout as it is predicted, where none of the search has run yet."""
    training: Training = field(default_factory=Training)
    """The training that the choice is for."""
    drift: float | None = None
    """The relative drift within a run that the study leads to expect; None where no run has shown it."""
    launch: LaunchNoise = field(default_factory=LaunchNoise)
    """How much two runs of one command differ."""
    max_samples: int | None = None
    """Steady iterations after which it ends whatever they show: a repeated run is no longer than the first."""

    def gaps(self, progress: Progress, direction: Direction) -> list[tuple[float, float]]:
        """Return how much slower the run is than what it is compared with, as logarithms with their standard errors.

        The best run comes first.
        """
        found, best, value = [], self.best, progress.latest
        if best is not None and best.unit == progress.unit and best.value and best.value > 0 and value and value > 0:
            found.append((direction.sign * math.log(value / best.value), best.standard_error))
        if self.predicted is not None and progress.step_s:
            found.append((math.log(progress.step_s / self.predicted.step_s), self.predicted.error))
        return [(gap, math.hypot(error, math.sqrt(2) * self.launch.sd)) for gap, error in found]


def saved_share(error: float, gaps: Iterable[tuple[float, float]], less_variance: float) -> float:
    """Return which share of the training is saved on average where the variance of a value falls by so much.

    The expected loss by a wrong choice between two values falls by half the density of their difference at 0 for each
    unit of variance.
    """
    density, is_best = 0.0, 1.0
    for gap, rival_error in gaps:
        between = NormalDist(0.0, math.hypot(error, rival_error))
        density += between.pdf(gap)
        is_best = min(is_best, between.cdf(-gap))
    to_come = NormalDist(0.0, math.hypot(error, NEXT_SD))
    return less_variance / 2 * (density + is_best * NEXT_SHARE * to_come.pdf(0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What is known of a run by its iterations so far, and why it ends or goes on."""

    reason: str
    """Why it may end, its first word being "known" or "behind"; where it goes on, what is known so far."""
    ends: bool = False
    left_s: float | None = None
    """About how long it still runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """The rule for when a run may end."""

    precision: float | None = None
    """The relative precision that a value must have, whatever it costs; None: as precise as is worth it."""

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if self.precision is not None and not 0 < self.precision <= MAX_PRECISION:
            limit = f"above 0 and at most {MAX_PRECISION * 100:g} percent"
            raise UsageError(f"--early-precision must be {limit}, but got {self.precision * 100:g}")

    def judge(self, progress: Progress, direction: Direction, stakes: Stakes) -> Judgement:
        """Return whether a run may end by now."""
        num, step_s = len(progress.values), progress.next_s or progress.step_s
        if num < MIN_SAMPLES or min(progress.values) <= 0 or not step_s:
            return Judgement(reason="warming up")
        error, gaps = progress.error, stakes.gaps(progress, direction)
        half_width, after = TO_90 * error, f"after {progress.num_iterations} iterations"
        known = f"known within {_percent(half_width)} {after}" if half_width < 1 else f"not known {after}"
        is_search = stakes.best is not None and stakes.max_samples is None
        is_behind = is_search and any(gap > SURE * math.hypot(error, other) for gap, other in gaps[:1])
        if stakes.max_samples is not None and num >= stakes.max_samples:
            return Judgement(reason=known, ends=True)
        may_drift = stakes.drift is None or stakes.drift > DRIFTS or is_behind
        left_s, why = LONG_S - num * step_s, "it may still drift"
        if not has_trend(progress.values):
            left_s = min(left_s, (LONG_SAMPLES - num) * step_s if may_drift else 0.0)
        # One more of n samples takes an n-th of the variance away, so that what it is worth falls with their square.
        training_s = stakes.training.seconds(progress.step_s or step_s)
        likely = min(error, MOST_ERROR)
        worth_s = training_s * saved_share(likely, gaps, likely**2 / num)
        more, other = num * (math.sqrt(worth_s / step_s) - 1), "another iteration may change the choice"
        if self.precision is not None and not is_behind:
            more, other = num * ((half_width / self.precision) ** 2 - 1), f"{_percent(self.precision)} is asked for"
        if more * step_s > left_s:
            left_s, why = more * step_s, other
        if left_s > 0:
            return Judgement(reason=f"{known}; {why}", left_s=left_s)
        reason = f"behind the best by {-math.expm1(-gaps[0][0]):.0%} {after}" if is_behind else known
        return Judgement(reason=reason, ends=True)

    def describe(self) -> str:
        """Say in one line when a run ends."""
        if self.precision is not None:
            return f"a trial ends once its value is known within {_percent(self.precision)}, or behind the best"
        return "a trial ends once its next iteration costs more than it is worth"


def study_drift(trials: Iterable[Trial]) -> float | None:
    """Return the largest relative drift within an earlier trial; None where none was long enough to show it."""
    return max((trial.drift for trial in trials if trial.drift is not None), default=None)


def _percent(fraction: float) -> str:
    return f"{fraction:.0%}" if fraction >= 0.1 else f"{fraction * 100:.2g}%"
