"""The divisors of a number: the sizes that something can be cut into evenly."""

from __future__ import annotations


def divisors(number: int) -> list[int]:
    """Return every divisor in ascending order.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
