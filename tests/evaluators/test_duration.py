from __future__ import annotations

from zenith_tune.evaluators.base import EvaluatorRegistry
from zenith_tune.evaluators.duration import DurationEvaluator
from zenith_tune.study.parameters import Direction


def test_the_value_is_the_duration_in_seconds_and_smaller_is_better() -> None:
    evaluator = EvaluatorRegistry.get("duration")()
    measurement = evaluator.measure("whatever", {"duration": 12.5})
    assert isinstance(evaluator, DurationEvaluator)
    assert (measurement.value, measurement.unit) == (12.5, "s")
    assert evaluator.evaluate("", {"duration": 3}) == 3.0
    assert evaluator.direction is Direction.MINIMIZE


def test_a_duration_is_that_of_the_command() -> None:
    assert DurationEvaluator().evaluate("", {"duration": 12.5}) == 12.5
