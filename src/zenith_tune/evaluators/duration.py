"""The simplest evaluator: how long the whole command took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from zenith_tune.evaluators.base import EvaluatorRegistry, Measurement, TuningEvaluator
from zenith_tune.study.parameters import Direction


@EvaluatorRegistry.register("duration")
class DurationEvaluator(TuningEvaluator):
    """The seconds that the command ran, start-up included.

    >>> DurationEvaluator().evaluate("", {"duration": 12.5})
    12.5
    """

    direction = Direction.MINIMIZE

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        """Return the trial's duration in seconds."""
        return self.measure(stdout, metadata).value

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the trial's duration in seconds, with its unit."""
        duration = metadata.get("duration")
        if not isinstance(duration, int | float) or isinstance(duration, bool) or not math.isfinite(duration):
            raise ValueError(f"the trial's duration must be a number of seconds, but got {duration!r}")
        return Measurement(value=float(duration), unit="s")

    def describe(self) -> str:
        """Say what is measured."""
        return f"duration of the whole command in seconds, {self.direction}"
