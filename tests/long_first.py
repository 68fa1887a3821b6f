"""The order in which workers take the tests: a long one that begins last leaves the other cores idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def long_first(rest: Sequence[T], long: Sequence[Sequence[T]], num_workers: int) -> list[T]:
    """Return all tests so that every worker begins with its share of the long ones, which come in groups.

    pytest-xdist's `worksteal` gives each worker one run of neighbours: a third, half of what is left, and the rest.

    >>> "".join(long_first("abcde", ["XY", "Z"], 2))
    'XYabZcde'
    """
    ordered: list[T] = []
    left, taken = len(rest) + sum(map(len, long)), 0
    for worker in range(num_workers):
        mine = [test for group in long[worker::num_workers] for test in group]
        size = left // (num_workers - worker)
        room = max(0, size - len(mine))
        ordered += [*mine, *rest[taken : taken + room]]
        taken += room
        left -= len(mine) + room
    return [*ordered, *rest[taken:]]
