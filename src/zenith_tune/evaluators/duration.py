"""The simplest evaluator: how long the whole command took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zenith_tune.evaluators.base import EvaluatorRegistry, Measurement, TuningEvaluator


@EvaluatorRegistry.register("duration")
class DurationEvaluator(TuningEvaluator):
    """The seconds that the command ran, start-up included."""

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        return float(metadata["duration"])

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        return Measurement(value=self.evaluate(stdout, metadata), unit="s")

    @property
    def measures_time(self) -> bool:
        return True

    def describe(self) -> str:
        return f"duration of the whole command in seconds, {self.direction}"
