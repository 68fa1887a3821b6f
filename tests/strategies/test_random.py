from __future__ import annotations

import pytest

from zenith_tune.errors import TrialExhausted, UsageError
from zenith_tune.strategies.base import StrategyRegistry
from zenith_tune.strategies.random import RandomStrategy, checked_seed
from zenith_tune.study.parameters import (
    BoolParameter,
    CategoricalParameter,
    Direction,
    FloatParameter,
    IntParameter,
    Parameter,
    Params,
)
from zenith_tune.testing import ScriptedTrials, StrategyContract

SPACE: dict[str, Parameter] = {
    "c": CategoricalParameter(["x", "y", "z"]),
    "i": IntParameter(3, 17, step=2),
    "f": FloatParameter(1e-5, 1e-1, log=True),
    "b": BoolParameter(),
}


def draw(strategy: RandomStrategy, budget: int) -> list[Params]:
    evaluation = ScriptedTrials(lambda point: 0.0, budget=budget)
    with pytest.raises(TrialExhausted):
        strategy.optimize(evaluation, SPACE, Direction.MINIMIZE)
    return evaluation.points


def test_the_same_seed_draws_the_same_points_and_a_larger_budget_continues_from_there() -> None:
    assert draw(RandomStrategy(), 40)[:20] == draw(RandomStrategy(), 20)
    again = RandomStrategy(seed=7)
    assert draw(again, 20) == draw(again, 20)


def test_another_seed_draws_other_points() -> None:
    assert draw(RandomStrategy(seed=1), 20) != draw(RandomStrategy(seed=2), 20)


@pytest.mark.parametrize("seed", [-1, 2**32, 99999999999999999999])
def test_a_seed_out_of_range_is_refused_before_any_trial(seed: int) -> None:
    with pytest.raises(UsageError, match=rf"seed .*2\*\*32 - 1.* got {seed}: "):
        RandomStrategy(seed=seed)
    RandomStrategy(seed=2**32 - 1)


def test_every_point_lies_in_the_space_with_its_keys_in_order_and_covers_it() -> None:
    points = draw(RandomStrategy(), 300)
    assert {tuple(point) for point in points} == {tuple(SPACE)}
    assert all(SPACE[name].contains(value) for point in points for name, value in point.items())
    assert {point["c"] for point in points} == {"x", "y", "z"}
    assert {point["i"] for point in points} == {3, 5, 7, 9, 11, 13, 15, 17}
    assert {point["b"] for point in points} == {False, True}


def test_random_needs_a_budget() -> None:
    assert StrategyRegistry.get("random") is RandomStrategy
    assert not RandomStrategy.ends_by_itself
    assert RandomStrategy().max_trials(SPACE) is None


class TestRandomStrategy(StrategyContract):
    def make(self) -> RandomStrategy:
        return RandomStrategy()


def test_a_good_seed_is_kept() -> None:
    assert checked_seed(7) == 7
