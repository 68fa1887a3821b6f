from __future__ import annotations

import itertools

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.strategies.zero_progressive.inside import Proposals
from zenith_tune.strategies.zero_progressive.strategy import ZeroProgressiveStrategy
from zenith_tune.study.parameters import Direction, Params, Value

AXES: dict[str, tuple[Value, ...]] = {"a": (1, 2, 3), "b": (True, False), "c": (10, 20, 30)}
BASE: Params = {"stage": 2, "a": 1, "b": True, "c": 10}


def everything(kind: str, seed: int = 0) -> list[tuple[Value, ...]]:
    proposals, found = Proposals(kind, AXES, BASE, seed), []
    while points := proposals.next(4, [(BASE, 1.0)], Direction.MAXIMIZE):
        found += [tuple(point[name] for name in AXES) for point in points]
    return found


@pytest.mark.parametrize("kind", ["grid", "random", "model"])
def test_every_combination_but_the_base_is_proposed_once(kind: str) -> None:
    found = everything(kind)
    assert len(found) == len(set(found))
    assert set(found) == set(itertools.product(*AXES.values())) - {(1, True, 10)}


def test_the_grid_begins_with_one_change_at_a_time() -> None:
    first = everything("grid")[:5]
    assert all(sum(a != b for a, b in zip(point, (1, True, 10), strict=True)) == 1 for point in first)


def test_random_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert everything("random", 1) == everything("random", 1) != everything("random", 2)
    assert everything("random", 1) != everything("grid")


@pytest.mark.parametrize("direction", list(Direction))
def test_the_model_finds_the_best_of_keys_that_add_up_sooner_than_the_grid(direction: Direction) -> None:
    effect: dict[Value, float] = {1: 1.0, 2: 1.1, 3: 1.3, 10: 1.0, 20: 0.9, 30: 1.15}

    def value(point: Params) -> float:
        product = effect[point["a"]] * effect[point["c"]] * (1.0 if point["b"] else 1.2)
        return product if direction is Direction.MAXIMIZE else 1 / product

    def runs_until_best(kind: str) -> int:
        proposals, known = Proposals(kind, AXES, BASE), [(BASE, value(BASE))]
        for number in itertools.count(1):
            [point] = proposals.next(1, known, direction)
            known.append((point, value(point)))
            if (point["a"], point["b"], point["c"]) == (3, False, 30):
                return number
        raise AssertionError

    assert runs_until_best("model") <= 8 < runs_until_best("grid")


def test_an_unknown_way_of_searching_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="grid"):
        ZeroProgressiveStrategy(inside="gird")
