from __future__ import annotations

import math

import pytest

from zenith_tune.strategies.zero_progressive.rung import EdgeSearch, most_looks


def looks_of(num: int, edge: int, guess: int | None) -> list[int]:
    search, looks = EdgeSearch(num, guess), []
    while (index := search.next()) is not None:
        looks.append(index)
        search.observe(index, index <= edge)
    assert search.edge == edge
    return looks


@pytest.mark.parametrize("num", [*range(1, 34), 64, 100])
def test_any_edge_takes_at_most_the_promised_looks_whatever_the_guess(num: int) -> None:
    promised = math.ceil(math.log2(num)) + 1
    for edge in range(-1, num):
        for guess in (None, 0, num // 3, num - 1, num + 5):
            looks = looks_of(num, edge, guess)
            assert len(looks) <= promised == most_looks(num), (edge, guess, looks)
            assert len(set(looks)) == len(looks)


def test_a_right_guess_takes_two_looks_where_the_promise_leaves_room() -> None:
    assert all(looks_of(10, edge, guess=edge) == [edge, edge + 1] for edge in range(2, 9))
    assert looks_of(10, 9, guess=9) == [9]


def test_without_a_guess_it_halves() -> None:
    assert looks_of(15, 14, guess=None)[0] == 7


def test_nothing_to_look_at_is_over_at_once() -> None:
    assert EdgeSearch(0).next() is None
