from __future__ import annotations

import math
import random
import statistics
from typing import Any

import pytest

from zenith_tune.study.precision import (
    LAUNCHES_ERROR,
    LEAST_NOISE,
    LaunchNoise,
    critical_t,
    locate,
    rank_trend,
    relative_error,
)


@pytest.mark.parametrize(
    ("error", "dof", "table"),
    [
        (0.10, 1, 6.314),
        (0.05, 1, 12.706),
        (0.05, 2, 4.303),
        (0.01, 3, 5.841),
        (0.05, 5, 2.571),
        (0.002, 10, 4.144),
        (0.05, 30, 2.042),
        (0.05, 120, 1.980),
        (0.05, 10**6, 1.960),
    ],
)
def test_critical_values_match_abramowitz_and_stegun_table_26_10(error: float, dof: int, table: float) -> None:
    assert critical_t(error, dof) == pytest.approx(table, abs=0.0006)


def test_the_standard_error_is_tukeys_and_mclaughlins() -> None:
    # A third of twelve is four: 5 to 8 are kept, and four of each end become 5 and 8.
    values = [5.0, 1.0, 9.0, 2.0, 6.0, 3.0, 8.0, 4.0, 70.0, 7.0, 11.0, 12.0]
    found = locate(values)
    spread = statistics.stdev([5.0] * 5 + [6.0, 7.0] + [8.0] * 5)
    assert (found.centre, found.dof) == (6.5, 3)
    assert math.sqrt(found.variance) == pytest.approx(spread / (4 / 12))


def test_of_few_samples_all_count() -> None:
    found = locate([1.0, 1.2, 0.9, 1.3])
    assert found.dof == 3
    assert found.variance == pytest.approx(statistics.variance([1.0, 1.2, 0.9, 1.3]))


def test_two_samples_are_known_as_well_as_students_t_says_and_no_better_than_a_clock() -> None:
    apart, alike = relative_error([1.0, 1.1]), relative_error([1.0, 1.0])
    assert apart > 0.2 and alike == pytest.approx(LEAST_NOISE / math.sqrt(2))


def test_a_trend_and_a_single_outlier_are_part_of_the_error() -> None:
    steady, rising = [1.0, 1.001, 0.999, 1.0, 1.001, 0.999], [1.0, 1.01, 1.02, 1.03, 1.04, 1.05]
    assert relative_error(rising) > 0.015 > 5 * relative_error(steady)
    assert relative_error([*steady, 2.0]) > 1 / 7


@pytest.mark.parametrize("sd", [0.001, 0.02])
def test_the_noise_between_launches_is_learned_from_pairs_of_runs(sd: float) -> None:
    rng = random.Random(0)
    seen = LaunchNoise().seen([math.sqrt(2) * sd * rng.gauss(0, 1) for _ in range(40)])
    assert LaunchNoise().half_width > 0.1 and seen.sd == pytest.approx(sd, rel=0.3)
    assert seen.half_width == pytest.approx(critical_t(LAUNCHES_ERROR, 40) * math.sqrt(2) * sd, rel=0.15)
    assert seen.half_width == pytest.approx({0.001: 0.003864, 0.02: 0.07946}[sd], rel=0.02)


def test_noise_that_a_quiet_machine_does_not_have_is_not_averaged_with_its(sd: float = 0.02) -> None:
    assert LaunchNoise().seen([sd]).half_width > critical_t(LAUNCHES_ERROR, 3) * sd > LaunchNoise().seen([0]).half_width
    assert LaunchNoise().seen([sd]).half_width == pytest.approx(0.43456, rel=0.001)


def test_an_outlier_moves_nothing() -> None:
    values = [1.0, 1.1, 0.9, 1.05, 0.95, 1.02, 0.98, 1.01, 0.99, 1.0]
    assert locate([*values[:-1], 100.0]).centre == pytest.approx(locate(values).centre, rel=0.02)


def test_iterations_that_take_after_one_another_are_worth_less() -> None:
    rng = random.Random(0)
    alike, level = [], 0.0
    for _ in range(200):
        level = 0.8 * level + rng.gauss(0, 1)
        alike.append(100 + level)
    shuffled = rng.sample(alike, len(alike))
    # sqrt((1 + 0.8) / (1 - 0.8)) is 3, of which the clipping of outliers takes some away.
    assert 1.8 < locate(alike).standard_error / locate(shuffled).standard_error < 3.5


def test_the_interval_of_a_single_look_holds_its_own_error() -> None:
    rng = random.Random(4)
    misses = 0
    for _ in range(2000):
        found = locate([rng.gauss(0, 1) for _ in range(24)])
        misses += abs(found.centre) > found.half_width(0.1)
    assert 0.06 < misses / 2000 < 0.12


def test_equal_samples_are_known_exactly() -> None:
    assert locate([2.0] * 10).half_width(0.01) == 0.0


@pytest.mark.parametrize(
    ("values", "rho"),
    [([1.0, 2.0, 3.0, 4.0], 1.0), ([4.0, 3.0, 2.0, 1.0], -1.0), ([1.0, 3.0, 2.0, 4.0], 0.8), ([1.0, 1.0, 2.0], 0.866)],
)
def test_the_trend_is_spearmans_correlation_with_time(values: list[float], rho: float) -> None:
    assert rank_trend(values) == pytest.approx(rho * math.sqrt(len(values) - 1), abs=0.001)


def test_numbers_whose_squares_are_beyond_all_numbers_are_known_as_well_as_any() -> None:
    assert relative_error([1e200, 1.02e200, 0.99e200]) == pytest.approx(relative_error([1.0, 1.02, 0.99]))


@pytest.mark.parametrize(
    "content",
    [
        *(None, [], 3, {}, {"squares": 0.01}, {"squares": "x", "num_pairs": 1}, {"squares": 0.01, "num_pairs": 0}),
        *({"squares": math.nan, "num_pairs": 2}, {"squares": -1, "num_pairs": 2}, {"squares": 1e308, "num_pairs": 1}),
        *({"squares": 0.01, "num_pairs": math.inf}, {"squares": 0.01, "num_pairs": 10**400}),
        {"squares": 0.01, "num_pairs": 1e30},
    ],
)
def test_what_no_pairs_of_runs_can_show_is_not_taken_for_noise_of_launches(content: Any) -> None:
    assert LaunchNoise.stored(content) == LaunchNoise()
    assert LaunchNoise.stored({"squares": 0.01, "num_pairs": 2}) == LaunchNoise(squares=0.01, num_pairs=2)


def test_critical_values_are_those_of_tables() -> None:
    assert round(critical_t(0.05, 4), 3) == 2.776
    assert round(critical_t(0.1, 30), 3) == 1.697


def test_an_outlier_hardly_moves_the_middle() -> None:
    found = locate([10.0, 10.2, 9.8, 10.1, 9.9, 10.0, 30.0, 10.0, 9.9, 10.1])
    assert round(found.centre, 2) == 10.03
    assert round(found.standard_error, 2) == 0.04
    assert found.dof == 3


def test_a_trend_shows_by_its_ranks() -> None:
    assert round(rank_trend([1.0, 2.0, 3.0, 4.0, 10.0]), 3) == 2.0
    assert rank_trend([7.0] * 5) == 0.0


def test_launches_that_agree_narrow_their_noise() -> None:
    assert round(LaunchNoise().seen([0.001, -0.002]).half_width, 4) == 0.0163
    assert round(LaunchNoise().half_width, 2) == 0.23


def test_two_samples_that_differ_have_a_large_error() -> None:
    assert round(relative_error([15.77, 15.76]), 5) == 0.00255
    assert round(relative_error([15.0, 17.0]), 2) == 0.48
