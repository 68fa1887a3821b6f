"""Finds the largest of n candidates that fits, where each fits if a larger one does."""

from __future__ import annotations


class EdgeSearch:
    """Bisect with a guess: the first look is at the guess, and no edge takes more than ceil(log2 n) + 1 looks.

    Of the looks that keep this promise, the one nearest to the guess is taken: where it is right, two often do.

    >>> search = EdgeSearch(10, guess=6)
    >>> looks = []
    >>> while (index := search.next()) is not None:
    ...     looks.append(index)
    ...     search.tell(index, index <= 6)
    >>> looks, search.edge
    ([6, 7], 6)
    """

    def __init__(self, num_candidates: int, guess: int | None = None) -> None:
        self.edge = -1
        """The largest that is known to fit."""
        self.num_looks = 0
        self._limit = num_candidates
        """The smallest that is known not to fit."""
        self._guess = guess
        self._budget = most_looks(num_candidates)

    def next(self) -> int | None:
        """Return the candidate to look at, or None where the edge is known."""
        first, last = self.edge + 1, self._limit - 1
        if first > last:
            return None
        # Whatever the look says, what stays unknown must be found out with the looks that are left.
        most = (1 << (self._budget - self.num_looks - 1)) - 1
        low, high = max(first, last - most), min(last, first + most)
        wanted = (first + last) // 2 if self._guess is None else self._guess
        return min(max(wanted, low), high)

    def tell(self, index: int, fits: bool) -> None:
        """Learn whether a candidate fits."""
        self.num_looks += 1
        if fits:
            self.edge = max(self.edge, index)
        else:
            self._limit = min(self._limit, index)


def most_looks(num_candidates: int) -> int:
    """Return ceil(log2 n) + 1, or 0 where there is nothing to look at.

    >>> [most_looks(n) for n in (0, 1, 2, 3, 8, 9)]
    [0, 1, 2, 3, 4, 5]
    """
    return (num_candidates - 1).bit_length() + 1 if num_candidates else 0
