"""Many points of a search space at once, multiplied axis by axis: what one value rules out is never put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch
from zenith_tune.study.parameters import Params, Value

Places = npt.NDArray[np.int32]
PIECE = 4096
"""Rows that are multiplied by an axis at a time, so that a large space is walked through without being held."""


@dataclass(frozen=True, slots=True)
class PointTable:
    """Hold points as rows: of each parameter its values, and for every row the place of its own among them.

    >>> table = PointTable.of_one().times("tp", (1, 2)).times("sp", (True, False))
    >>> [table.point(row) for row in (0, 3)]
    [{'tp': 1, 'sp': True}, {'tp': 2, 'sp': False}]
    """

    values: Mapping[str, Sequence[Value]]
    places: Mapping[str, Places]
    num_rows: int

    @classmethod
    def of_one(cls) -> PointTable:
        """Return the one point of a space without parameters."""
        return cls({}, {}, 1)

    def __len__(self) -> int:
        return self.num_rows

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def __getitem__(self, name: str) -> Any:
        """Return the values of one parameter, a row each."""
        return np.asarray(self.values[name])[self.places[name]]

    def times(self, name: str, values: Sequence[Value]) -> PointTable:
        """Return every row with each of these values, in the order of nested loops."""
        places = {known: np.repeat(column, len(values)) for known, column in self.places.items()}
        places[name] = np.tile(np.arange(len(values), dtype=np.int32), self.num_rows)
        return PointTable({**self.values, name: values}, places, self.num_rows * len(values))

    def take(self, rows: slice | BoolArray | npt.NDArray[np.intp]) -> PointTable:
        """Return some of the rows."""
        kept = np.arange(self.num_rows)[rows]
        return PointTable(self.values, {name: column[kept] for name, column in self.places.items()}, len(kept))

    def point(self, row: int) -> Params:
        """Return the point of a row."""
        return {name: values[self.places[name][row]] for name, values in self.values.items()}


def grow(
    table: PointTable, axes: Sequence[tuple[str, Sequence[Value]]], holds: Callable[[str, PointTable], BoolArray]
) -> Iterator[PointTable]:
    """Yield pieces of the table of all axes, without the rows that do not hold once an axis is chosen."""
    if not axes:
        yield table
        return
    (name, values), *later = axes
    for start in range(0, len(table), PIECE):
        grown = table.take(slice(start, start + PIECE)).times(name, values)
        kept = grown.take(holds(name, grown))
        if len(kept):
            yield from grow(kept, later, holds)


def laid_over(num_gpus: int, **columns: npt.ArrayLike) -> LayoutBatch:
    """Return layouts over so many GPUs; one whose sizes do not divide them has another `num_gpus`."""
    tp, pp, cp = (np.asarray(columns.get(name, 1), np.int32) for name in ("tp", "pp", "cp"))
    return LayoutBatch.of(**columns, dp=np.maximum(num_gpus // (tp * pp * cp), 1))
