from __future__ import annotations

import pytest

from zenith_tune.strategies.zero_progressive.rung import Growth
from zenith_tune.study.parameters import Direction


def pace(mbs: int) -> float:
    return 0.01 + 0.02 / mbs


def test_two_runs_show_what_a_third_will_gain() -> None:
    speeds = Growth({mbs: 1 / pace(mbs) for mbs in (2, 4)}, Direction.MAXIMIZE)
    times = Growth({mbs: pace(mbs) for mbs in (2, 4)}, Direction.MINIMIZE)
    wanted = pace(4) / pace(16) - 1
    assert speeds.expected_gain(4, 16) == pytest.approx(wanted)
    assert times.expected_gain(4, 16) == pytest.approx(wanted)


def test_one_run_says_nothing_of_growth() -> None:
    growth = Growth({4: 10.0}, Direction.MAXIMIZE)
    assert growth.expected_gain(4, 8) is None and growth.last_gain() is None
    assert Growth({}, Direction.MAXIMIZE).best is None


def test_growth_beyond_the_curve_says_nothing_of_its_end() -> None:
    assert Growth({1: 1.0, 2: 10.0}, Direction.MAXIMIZE).expected_gain(2, 64) is None


def test_the_smaller_of_equals_is_best_and_latency_is_best_where_it_is_small() -> None:
    assert Growth({8: 5.0, 4: 5.0, 2: 4.0}, Direction.MAXIMIZE).best == 4
    assert Growth({8: 5.0, 4: 6.0}, Direction.MINIMIZE).best == 8


def test_the_last_gain_is_that_of_a_doubling() -> None:
    assert Growth({1: 1.0, 8: 2.0, 4: 1.9, 6: 1.95}, Direction.MAXIMIZE).last_gain() == pytest.approx(2 / 1.9 - 1)
    assert Growth({4: 1.9, 6: 1.95}, Direction.MAXIMIZE).last_gain() is None
