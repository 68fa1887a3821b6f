"""The order in which workers take the tests: a long one that begins last leaves the other cores idle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def long_first(rest: Sequence[T], long: Sequence[T], num_workers: int) -> list[T]:
    """Return all tests so that every worker begins with its share of the long ones.

    pytest-xdist's `worksteal` gives each worker one run of neighbours: a third, half of what is left, and the rest.

    >>> long_first("abcd", "XY", 3)
    ['X', 'a', 'Y', 'b', 'c', 'd']
    """
    ordered: list[T] = []
    left, taken = len(rest) + len(long), 0
    for worker in range(num_workers):
        mine = list(long[worker::num_workers])
        size = left // (num_workers - worker)
        room = max(0, size - len(mine))
        ordered += [*mine, *rest[taken : taken + room]]
        taken += room
        left -= len(mine) + room
    return [*ordered, *rest[taken:]]
