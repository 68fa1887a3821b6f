from __future__ import annotations

from collections.abc import Sequence

import pytest

from zenith_tune.evaluators.steady import Sample, SteadyState, num_warm_up, relative_spread, summarise


def state(*seconds: float) -> SteadyState:
    return summarise([Sample(iteration=number, seconds=value) for number, value in enumerate(seconds, start=1)])


def test_a_single_sample_is_kept_and_its_spread_is_unknown() -> None:
    assert state(2.0) == SteadyState(step_s=2.0, spread=None, num_samples=1, num_warm_up=0)


def test_the_first_sample_is_dropped_even_if_it_looks_steady() -> None:
    assert state(1.0, 1.0, 1.0).num_samples == 2


def test_slow_leading_samples_are_warm_up() -> None:
    found = state(9.0, 5.0, 2.0, 1.0, 1.0, 1.0, 1.0)
    assert (found.step_s, found.num_warm_up, found.num_samples) == (1.0, 3, 4)


@pytest.mark.parametrize(
    ("seconds", "dropped"),
    [
        ([9, 1.09, 1, 1, 1], 1),
        ([9, 1.11, 1, 1, 1], 2),
        ([9, 1, 2, 1, 1, 1, 1], 1),
        ([9, 8, 7, 6, 5, 1, 1], 4),
        ([9, 8], 1),
        ([0.1, 1, 1, 1, 1], 1),
    ],
)
def test_warm_up_ends_at_the_first_sample_within_ten_percent_and_never_takes_more_than_half(
    seconds: Sequence[float], dropped: int
) -> None:
    assert num_warm_up(seconds) == dropped


def test_one_outlier_moves_neither_value_nor_spread() -> None:
    calm = state(9, 1.00, 1.02, 0.98, 1.01, 0.99)
    disturbed = state(9, 1.00, 1.02, 0.98, 1.01, 50.0)
    assert calm.step_s == 1.00
    assert disturbed.step_s == 1.01
    assert disturbed.spread == pytest.approx(1.4826 * 0.01 / 1.01)


def test_the_spread_is_the_scaled_median_deviation() -> None:
    assert relative_spread([8.0, 10.0, 11.0]) == pytest.approx(1.4826 * 1.0 / 10.0)
    assert relative_spread([5.0, 5.0]) == 0.0
    assert relative_spread([5.0]) is None


def test_no_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="one sample"):
        summarise([])
