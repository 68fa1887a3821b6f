"""Steps of fewer micro-batches at the start of a run, which state the step of the whole batch by the line through them.

A step is many equal micro-batches and a part that is there once: the optimizer, the filling of the pipeline, the last
messages. Legend: x the share of the whole batch, y the seconds of a step, y = f + s x, of which f + s is the whole one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from zenith_tune.evaluators.steps import LoggedSteps, Step
from zenith_tune.hooks.injection import hook_events
from zenith_tune.study.precision import LEAST_NOISE, LOOKS_ERROR, TO_90, critical_t, relative_error

MIN_WHOLE, MIN_RATIO = 8, 4
"""Micro-batches of a step from which shorter ones pay, and how many times the smallest number they must be."""
SHARE = 8
"""The largest number is this part of the whole batch, where the smallest allows it."""
NUM_FIRST = 2
"""Steps at the start that may be warm-up: the second still allocates."""
_KEY = "short_steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortSteps:
    """How many micro-batches the first steps of a run have."""

    numbers: tuple[int, ...]
    whole: int
    """Micro-batches of the whole batch."""

    @classmethod
    def of(cls, whole: int, *, in_flight: int = 1, unit: int = 1) -> Self | None:
        """Return the numbers for a step of `whole` micro-batches, or None where it is too small to gain by them.

        None is smaller than what a pipeline has in flight, so that they take the memory of the whole step, and each is
        a multiple of `unit`. They alternate, so that what changes with time is not taken for a part of the line.

        >>> ShortSteps.of(64, in_flight=4).numbers
        (4, 4, 8, 4, 6, 8, 4, 6)
        """
        least = _rounded_up(max(in_flight, 2), unit)
        if whole < max(MIN_WHOLE, MIN_RATIO * least) or whole % unit:
            return None
        most = _rounded_up(max(2 * least, least + 2 * unit, whole / SHARE), unit)
        middle = (least + most) // (2 * unit) * unit
        return cls(numbers=(least, least, most, least, middle, most, least, middle), whole=whole)


def _rounded_up(number: float, unit: int) -> int:
    return math.ceil(number / unit) * unit


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLine:
    """The seconds of a step by its share of the whole batch."""

    fixed_s: float
    slope_s: float
    error: float
    """Relative standard error of the whole step."""

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Self | None:
        """Return the line through shares and seconds, by least squares of relative residuals; None for too few.

        >>> line = StepLine.through([(0.25, 3.0), (0.125, 2.0), (0.1875, 2.5), (0.25, 3.0)])
        >>> round(line.at(1), 6), round(line.error, 4)
        (9.0, 0.0143)
        """
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
    event = next((event for event in reversed(hook_events(log)) if _KEY in event), None) if _KEY in log else None
    if event is None:
        return logged
    logged = replace(logged, num_trained=logged.num_steps)
    known = [(step, step.samples / event["batch"]) for step in logged.steps if step.samples and step.seconds]
    whole = [step for step, share in known if share == 1]
    points = [(share, step.pace_s) for step, share in known[NUM_FIRST:] if not step.num_skipped]
    line = StepLine.through(points)
    if line is None:
        return replace(logged, steps=whole)
    scaled = replace(
        logged,
        steps=[_scaled(step, share, line, event) for step, share in known],
        next_s=line.at(([*event[_KEY], event["whole"]][min(len(known), len(event[_KEY]))]) / event["whole"]),
        common_error=line.error,
    )
    alone = replace(logged, steps=whole)
    return alone if _error(alone) < _error(scaled) else scaled


def _scaled(step: Step, share: float, line: StepLine, event: dict[str, Any]) -> Step:
    """Return the whole step that is as much off the line as a short one."""
    times = line.at(1) / line.at(share)
    tflops = None if step.tflops is None else step.tflops / times / share
    return replace(step, seconds=step.pace_s * times, samples=event["batch"], tflops=tflops)


def _error(logged: LoggedSteps) -> float:
    paces = [step.pace_s for step in logged.steady]
    return relative_error(paces, logged.common_error) if len(paces) > 1 else math.inf
