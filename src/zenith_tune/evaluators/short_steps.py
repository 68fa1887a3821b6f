"""Steps of fewer micro-batches at the start of a run, which state the step of the whole batch by the line through them.

A step is many equal micro-batches and a part that is there once: the optimizer, the filling of the pipeline, the last
messages. Legend: x the share of the whole batch, y the seconds of a step, y = f + s x, of which f + s is the whole one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from zenith_tune.evaluators.steps import LoggedSteps, Step
from zenith_tune.hooks.injection import hook_events
from zenith_tune.study.precision import LEAST_NOISE, LOOKS_ERROR, TO_90, critical_t, relative_error

MIN_WHOLE, MIN_RATIO = 8, 4
"""Micro-batches of a step from which shorter ones pay, and how many times the smallest number they must be."""
SHARE = 8
"""The largest number is this part of the whole batch, where the smallest allows it."""
PIPELINE_ERROR, INTERLEAVED_ERROR = 0.003, 0.008
"""What the line is off where stages differ and the slowest is neither the first nor the last: root mean square of 900
simulated pipelines of 2 to 8 stages (2026-11-19). One of two stages is always at an end."""
NUM_FIRST = 2
"""Steps at the start that may be warm-up: the second still allocates."""
MOST_ERROR = 0.02
"""Relative standard error from which a line says nothing: below, it is within 1% of steady whole steps on an H200."""
_KEY = "short_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortSteps:
    """How many micro-batches the first steps of a run have."""

    numbers: tuple[int, ...]
    whole: int
    """Micro-batches of the whole batch."""
    error: float = 0.0
    """Relative standard error of the line itself."""

    @classmethod
    def of(cls, whole: int, *, stages: int = 1, group: int = 0) -> Self | None:
        """Return the numbers for a step of `whole` micro-batches, or None where it is too small to gain by them.

        The smallest fills a pipeline of `stages`, so that it takes the memory of the whole step, and runs until its
        slowest stage sets the pace. In an interleaved one each is a multiple of the `group` that a chunk takes in turn.
        They alternate, so that what changes with time is not taken for a part of the line.
        """
        unit = group or 1
        least = 2 * group or (2 * stages if stages > 2 else 2)
        if whole < max(MIN_WHOLE, MIN_RATIO * least) or whole % unit:
            return None
        most = math.ceil(max(2 * least, whole / SHARE) / unit) * unit
        middle = (least + most) // (2 * unit) * unit
        error = INTERLEAVED_ERROR if group else PIPELINE_ERROR if stages > 2 else 0.0
        return cls(numbers=(least, least, most, least, middle, most, least, middle), whole=whole, error=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """The seconds of a step by its share of the whole batch."""

    fixed_s: float
    slope_s: float
    error: float
    """Relative standard error of the whole step."""

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Self | None:
        """Return the line through shares and seconds, by least squares of relative residuals; None for too few."""
        if len({share for share, _ in points}) < 3:
            return None
        ones, shares = [1 / seconds for _, seconds in points], [share / seconds for share, seconds in points]
        a, b, c = (sum(map(operator.mul, *pair)) for pair in ((ones, ones), (ones, shares), (shares, shares)))
        det = a * c - b * b
        fixed, slope = (sum(ones) * c - sum(shares) * b) / det, (sum(shares) * a - sum(ones) * b) / det
        if fixed + slope <= 0:
            return None
        dof = len(points) - 2
        squares = sum((1 - fixed * one - slope * share) ** 2 for one, share in zip(ones, shares, strict=True))
        noise = max(math.sqrt(squares / dof), LEAST_NOISE)
        error = noise * math.sqrt((a - 2 * b + c) / det) / (fixed + slope)
        return cls(fixed_s=fixed, slope_s=slope, error=critical_t(LOOKS_ERROR, dof) / TO_90 * error)

    def at(self, share: float) -> float:
        """Return the seconds of a step."""
        return self.fixed_s + self.slope_s * share


def as_whole(logged: LoggedSteps, log: str) -> LoggedSteps:
    """Return the steps of a run that began with short ones as steps of the whole batch, none where too few are known.

    Whole steps are points of the line too, and count alone once their value is better known so.
    """
    if _KEY not in log:
        return logged
    short = next((event[_KEY] for event in reversed(hook_events(log)) if _KEY in event), None)
    if short is None:
        return logged
    if any(step.seconds is not None and not 0 < step.seconds < math.inf for step in logged.steps):
        return logged  # as it is: that of a run without short steps is refused too
    logged = replace(logged, num_trained=logged.num_steps)
    known = [(step, step.samples / short["batch"]) for step in logged.steps if step.samples and step.seconds]
    whole = [step for step, share in known if share == 1]
    points = [(share, step.pace_s) for step, share in known[NUM_FIRST:] if not step.num_skipped]
    line = StepLine.through(points)
    alone = replace(logged, steps=whole)
    if line is None or line.error > MOST_ERROR:
        return alone
    scaled = replace(
        logged,
        steps=[_scaled(step, share, line, short["batch"]) for step, share in known],
        next_s=line.at(next(iter(short["numbers"][len(known) :]), short["whole"]) / short["whole"]),
        common_error=math.hypot(line.error, short["error"]),
    )
    return alone if _error(alone) < _error(scaled) else scaled


def _scaled(step: Step, share: float, line: StepLine, batch: int) -> Step:
    """Return the whole step that is as much off the line as a short one."""
    times = line.at(1) / line.at(share)
    tflops = None if step.tflops is None else step.tflops / times / share
    return replace(step, seconds=step.pace_s * times, samples=batch, tflops=tflops)


def _error(logged: LoggedSteps) -> float:
    paces = [step.pace_s for step in logged.steady]
    return relative_error(paces, logged.common_error) if len(paces) > 1 else math.inf
