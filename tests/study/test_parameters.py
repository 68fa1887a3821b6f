from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.mentions import mentions
from zenith_tune.study.parameters import BoolParameter, CategoricalParameter, FloatParameter, IntParameter, Value

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(
    low=st.integers(-(2**60), 2**60),
    width=st.integers(0, 2**60),
    step=st.integers(1, 2**40),
    num_points=st.integers(1, 40),
    seed=st.integers(),
)
def test_int_grids_and_samples_lie_in_the_range(low: int, width: int, step: int, num_points: int, seed: int) -> None:
    parameter = IntParameter(low, low + width, step=step)
    grid = parameter.grid(num_points)
    assert all(parameter.contains(value) for value in grid)
    assert grid == sorted(set(grid))
    assert 1 <= len(grid) <= num_points
    assert parameter.contains(parameter.sample(random.Random(seed)))


@given(low=st.integers(-100, 100), count=st.integers(1, 30), step=st.integers(1, 9), extra=st.integers(0, 8))
def test_an_int_grid_with_room_for_all_values_holds_them_all(low: int, count: int, step: int, extra: int) -> None:
    parameter = IntParameter(low, low + (count - 1) * step + extra % step, step=step)
    every = [low + i * step for i in range(count)]
    assert parameter.grid(count) == parameter.grid(3 * count) == every


def test_an_int_grid_holds_both_ends_and_spreads_evenly_between() -> None:
    assert IntParameter(1, 9, step=2).grid(3) == [1, 5, 9]
    assert IntParameter(0, 100).grid(5) == [0, 25, 50, 75, 100]
    assert IntParameter(0, 10, step=3).grid(2) == [0, 9]
    assert IntParameter(0, 10).grid(1) == [5]


def test_an_int_range_holds_neither_bools_nor_floats_nor_what_lies_between_steps() -> None:
    parameter = IntParameter(1, 9, step=2)
    assert parameter.contains(3)
    for value in (True, 3.0, 4, 11, -1, "3", None):
        assert not parameter.contains(value)


@given(
    low=finite,
    high=finite,
    num_points=st.integers(1, 20),
    seed=st.integers(),
    log=st.booleans(),
)
def test_float_grids_and_samples_lie_in_the_range(
    low: float, high: float, num_points: int, seed: int, log: bool
) -> None:
    assume(low <= high and math.isfinite(high - low) and (low > 0 or not log))
    parameter = FloatParameter(low, high, log=log)
    grid = parameter.grid(num_points)
    assert all(parameter.contains(value) for value in grid)
    assert 1 <= len(grid) == len(set(grid)) <= num_points
    rng = random.Random(seed)
    assert all(parameter.contains(parameter.sample(rng)) for _ in range(10))


def test_a_float_grid_holds_both_ends_exactly() -> None:
    assert FloatParameter(0.1, 0.7).grid(4) == pytest.approx([0.1, 0.3, 0.5, 0.7])
    for log in (False, True):
        grid = FloatParameter(0.1, 0.7, log=log).grid(7)
        assert (grid[0], grid[-1]) == (0.1, 0.7)


def test_a_log_grid_spreads_by_ratio() -> None:
    assert FloatParameter(1e-4, 1e-2, log=True).grid(3) == pytest.approx([1e-4, 1e-3, 1e-2])


def test_log_samples_fall_evenly_on_each_side_of_the_geometric_mean() -> None:
    parameter, rng = FloatParameter(1e-6, 1.0, log=True), random.Random(0)
    below = sum(parameter.sample(rng) < 1e-3 for _ in range(1000))
    assert 430 < below < 570


def test_a_float_range_holds_ints_but_neither_bools_nor_nan() -> None:
    parameter = FloatParameter(0.0, 2.0)
    assert parameter.contains(1)
    assert parameter.contains(0.5)
    for value in (True, math.nan, 2.5, "1.0", None):
        assert not parameter.contains(value)


def test_choices_keep_their_order_and_are_all_in_the_grid() -> None:
    parameter = CategoricalParameter([4, 1, 2])
    assert parameter.grid(1) == [4, 1, 2]
    assert {parameter.sample(random.Random(seed)) for seed in range(40)} == {1, 2, 4}


def test_choices_that_python_takes_for_equal_are_told_apart() -> None:
    choices: list[Value] = [1, 1.0, True, "1"]
    assert CategoricalParameter(choices).grid(5) == choices
    assert CategoricalParameter([1]).contains(1)
    for value in (1.0, True, "1"):
        assert not CategoricalParameter([1]).contains(value)


def test_a_bool_parameter_is_false_or_true() -> None:
    parameter = BoolParameter()
    assert isinstance(parameter, CategoricalParameter)
    assert parameter.grid(1) == [False, True]
    assert parameter.contains(True)
    assert not parameter.contains(1)
    assert parameter == BoolParameter()


def test_parameters_with_the_same_values_are_equal_and_can_be_keys() -> None:
    assert (
        len({IntParameter(1, 2), IntParameter(1, 2), CategoricalParameter([1, 2]), CategoricalParameter((1, 2))}) == 2
    )


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: IntParameter(2, 1), ("low", "high", 2, 1)),
        (lambda: IntParameter(1, 2, step=0), ("step", 1, 0)),
        (lambda: FloatParameter(2.0, 1.0), ("low", "high", 2.0, 1.0)),
        (lambda: FloatParameter(0.0, 1.0, log=True), ("low", "log", 0.0)),
        (lambda: FloatParameter(0.0, math.inf), ("finite", 0.0, "inf")),
        (lambda: FloatParameter(math.nan, 1.0), ("finite", "nan", 1.0)),
        (lambda: FloatParameter(-1.7e308, 1.7e308), ("finite", -1.7e308, 1.7e308)),
        (lambda: CategoricalParameter([]), ("[]",)),
        (lambda: CategoricalParameter([1, 2, 1]), ("twice", "[1, 2, 1]")),
        (lambda: CategoricalParameter("abc"), ("list", "'abc'")),
        (lambda: IntParameter(1, 2).grid(0), ("grid_points", 1, 0)),
    ],
)
def test_a_parameter_without_sense_is_refused(build: object, named: tuple[object, ...]) -> None:
    assert callable(build)
    with pytest.raises(ValueError) as caught:
        build()
    assert mentions(caught.value, *named)
