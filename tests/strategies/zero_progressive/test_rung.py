"""The examples of rung."""

from __future__ import annotations

import pytest

from zenith_tune.strategies.zero_progressive.rung import EdgeSearch, Growth, Rung, least, most_looks
from zenith_tune.study.parameters import Direction


def test_a_rung_is_named_by_what_it_adds() -> None:
    assert Rung(base={"stage": 2, "mbs": 1, "offload_optimizer": "cpu"}).name == "stage 2, offload_optimizer"


def test_the_least_of_a_bucket_is_the_smallest() -> None:
    assert least("reduce_bucket_size", (500, 50)) == 50
    assert not least("overlap_comm", (True, False))
    assert least("mbs", (2, 1)) == 2


def test_a_search_with_a_good_guess_takes_two_looks() -> None:
    search = EdgeSearch(10, guess=6)
    looks = []
    while (index := search.next()) is not None:
        looks.append(index)
        search.observe(index, index <= 6)
    assert looks == [6, 7]
    assert search.edge == 6


def test_a_bisection_takes_logarithmically_many_looks() -> None:
    assert [most_looks(n) for n in (0, 1, 2, 3, 8, 9)] == [0, 1, 2, 3, 4, 5]


def test_a_growth_expects_less_of_the_next_doubling() -> None:
    growth = Growth({1: 10.0, 2: 15.0}, Direction.MAXIMIZE)
    assert growth.expected_gain(2, 4) == pytest.approx(1 / 3)
