from __future__ import annotations

import pytest

from zenith_tune.errors import TrialExhausted, UsageError
from zenith_tune.strategies.base import StrategyRegistry
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.study.parameters import (
    BoolParameter,
    CategoricalParameter,
    Direction,
    FloatParameter,
    IntParameter,
    Parameter,
)
from zenith_tune.testing import ScriptedTrials, StrategyContract


def test_a_grid_tries_every_choice_in_declaration_order_the_last_parameter_fastest() -> None:
    evaluation = ScriptedTrials(lambda point: None)
    space: dict[str, Parameter] = {"b": CategoricalParameter(["x", "y"]), "a": BoolParameter()}
    GridStrategy().optimize(evaluation, space, Direction.MINIMIZE)
    assert [list(point.items()) for point in evaluation.points] == [
        [("b", "x"), ("a", False)],
        [("b", "x"), ("a", True)],
        [("b", "y"), ("a", False)],
        [("b", "y"), ("a", True)],
    ]


def test_a_numeric_parameter_is_tried_at_grid_points_values() -> None:
    evaluation = ScriptedTrials(lambda point: 0.0)
    space: dict[str, Parameter] = {"i": IntParameter(0, 10), "f": FloatParameter(0.25, 4.0, log=True)}
    GridStrategy(grid_points=3).optimize(evaluation, space, Direction.MINIMIZE)
    assert sorted({int(point["i"]) for point in evaluation.points}) == [0, 5, 10]
    assert sorted({float(point["f"]) for point in evaluation.points}) == pytest.approx([0.25, 1.0, 4.0])
    assert len(evaluation.points) == GridStrategy(grid_points=3).max_trials(space) == 9


def test_five_grid_points_are_the_default() -> None:
    assert GridStrategy().max_trials({"i": IntParameter(1, 100), "b": BoolParameter()}) == 10


def test_a_huge_grid_starts_at_once() -> None:
    space: dict[str, Parameter] = {f"p{i}": CategoricalParameter(range(1000)) for i in range(20)}
    evaluation = ScriptedTrials(lambda point: 0.0, budget=3)
    with pytest.raises(TrialExhausted):
        GridStrategy().optimize(evaluation, space, Direction.MINIMIZE)
    assert [point["p19"] for point in evaluation.points] == [0, 1, 2]
    assert GridStrategy().max_trials(space) == 1000**20


def test_a_grid_of_less_than_one_point_is_refused() -> None:
    with pytest.raises(UsageError, match=r"grid_points .*got 0") as caught:
        GridStrategy(grid_points=0)
    assert caught.value.hint


def test_a_grid_ends_by_itself_and_is_registered() -> None:
    assert StrategyRegistry.get("grid") is GridStrategy
    assert GridStrategy.ends_by_itself


class TestGridStrategy(StrategyContract):
    def make(self) -> GridStrategy:
        return GridStrategy()


def test_a_grid_has_every_combination() -> None:
    space = {"tp": CategoricalParameter([1, 2]), "mbs": CategoricalParameter([1, 2, 4])}
    assert GridStrategy().max_trials(space) == 6
