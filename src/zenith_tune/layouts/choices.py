"""Options that differ from row to row, laid out over all rows at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from zenith_tune.layouts.layout_batch import IntArray

Index = npt.NDArray[np.intp]


class Choices:
    """Hold a list of options per key, each one or several numbers.

    >>> choices = Choices({1: [(7,)], 2: [(8,), (9,)]})
    >>> rows, options = choices.expand(np.array([2, 1]))
    >>> rows.tolist(), options[:, 0].tolist()
    ([0, 0, 1], [8, 9, 7])
    """

    def __init__(self, options: Mapping[int, Sequence[tuple[int, ...]]], width: int = 1) -> None:
        self._keys = np.array(sorted(options), np.int64)
        counts = [len(options[key]) for key in sorted(options)]
        self._counts = np.array(counts, np.intp)
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp)
        flat = [option for key in sorted(options) for option in options[key]]
        self._flat: IntArray = np.array(flat, np.int32).reshape(len(flat), width if not flat else len(flat[0]))

    def count(self, keys: npt.NDArray[np.integer]) -> Index:
        """Return how many options each row has."""
        return self._counts[np.searchsorted(self._keys, keys)]

    def expand(self, keys: npt.NDArray[np.integer]) -> tuple[Index, IntArray]:
        """Return, for every option of every row, the row's index and the option."""
        at = np.searchsorted(self._keys, keys)
        counts = self._counts[at]
        rows = np.repeat(np.arange(len(keys)), counts)
        first = np.repeat(self._starts[at] - np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(np.intp), counts)
        return rows, self._flat[first + np.arange(len(rows))]
