"""A preset small enough to see through: one parameter, put in by a placeholder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zenith_tune import Direction, RegexEvaluator, TuningEvaluator, TuningPreset, TuningStrategy
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.study.parameters import CategoricalParameter, Parameter, Value


class ToyPreset(TuningPreset):
    """Search x; points in `illegal` are pruned."""

    def __init__(self, choices: Sequence[Value] = (1, 2, 3), illegal: Sequence[Value] = ()) -> None:
        self._choices = list(choices)
        self._illegal = illegal

    def get_search_space(self) -> dict[str, Parameter]:
        return {"x": CategoricalParameter(self._choices)}

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return fill_placeholders(command, params)[0]

    def get_recommended_strategy(self) -> TuningStrategy:
        return GridStrategy()

    def evaluator(self) -> TuningEvaluator:
        return RegexEvaluator(r"value: (\S+)", direction=Direction.MAXIMIZE)

    def explain(self, params: Mapping[str, Value]) -> str | None:
        return f"x must not be {params['x']}" if params["x"] in self._illegal else None
