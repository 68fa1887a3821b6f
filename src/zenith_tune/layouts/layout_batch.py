"""Many layouts at once, as a struct of arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from zenith_tune.layouts.layout import RECOMPUTE_NAMES as RECOMPUTE_NAMES
from zenith_tune.layouts.layout import SCHEDULES, Layout
from zenith_tune.study.parameters import Params, Value
from zenith_tune.units import count

IntArray = npt.NDArray[np.int32]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
Number = float | FloatArray

RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM, RECOMPUTE_BLOCK = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutBatch:
    """Layouts as one array per choice; row i of all arrays is one layout.

    Dense layers: num_gpus = tp * cp * dp * pp; experts: num_gpus = etp * ep * edp * pp.
    """

    tp: IntArray
    pp: IntArray
    vp: IntArray
    """Model chunks per pipeline rank (interleaving); 1 for plain 1F1B."""
    schedule: IntArray
    """The place of the pipeline's schedule in SCHEDULES."""
    cp: IntArray
    ep: IntArray
    etp: IntArray
    dp: IntArray
    zero: IntArray
    """Sharding over the data-parallel ranks: 0 nothing, 1 optimizer, 2 and gradients, 3 and weights."""
    mbs: IntArray
    """Samples per micro-batch."""
    gbs: IntArray
    """Samples per step, over all ranks."""
    recompute: IntArray
    """One of RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM, RECOMPUTE_BLOCK."""
    recompute_layers: IntArray
    """Full recomputation: layers per chunk (uniform), or layers recomputed per model chunk (block); else 0."""
    sequence_parallel: BoolArray
    flash_attention: BoolArray

    def __len__(self) -> int:
        return len(self.tp)

    def __repr__(self) -> str:
        return f"LayoutBatch({count(len(self), 'layout')})"

    @property
    def num_gpus(self) -> IntArray:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def edp(self) -> IntArray:
        """Ranks that hold the same experts."""
        return self.num_gpus // (self.etp * self.ep * self.pp)

    @property
    def num_micro_batches(self) -> IntArray:
        """Micro-batches per step and rank."""
        return self.gbs // (self.mbs * self.dp)

    @property
    def micro_batch(self) -> IntArray:
        """`mbs` under the name that Layout has for it."""
        return self.mbs

    @property
    def global_batch(self) -> IntArray:
        """`gbs` under the name that Layout has for it."""
        return self.gbs

    def recompute_is(self, names: Collection[str]) -> BoolArray:
        return np.array([name in names for name in RECOMPUTE_NAMES])[self.recompute]

    def schedule_is(self, names: Collection[str]) -> BoolArray:
        return np.array([name in names for name in SCHEDULES])[self.schedule]

    @classmethod
    def of(cls, **columns: npt.ArrayLike) -> Self:
        """Build a batch from columns of one length or scalars; the default is off or 1."""
        defaults: dict[str, npt.ArrayLike] = dict.fromkeys(("tp", "pp", "vp", "cp", "ep", "etp", "dp", "mbs", "gbs"), 1)
        defaults |= {"schedule": 0, "zero": 0, "recompute": RECOMPUTE_NONE, "recompute_layers": 0}
        defaults |= {"sequence_parallel": False, "flash_attention": True}
        columns = defaults | columns
        (length,) = np.broadcast_shapes((1,), *map(np.shape, columns.values()))
        kinds = {field.name: np.bool_ if field.type == "BoolArray" else np.int32 for field in fields(cls)}
        arrays: dict[str, Any] = {
            name: np.broadcast_to(np.asarray(columns[name], kinds[name]), length) for name in kinds
        }
        return cls(**arrays)

    def take(self, index: npt.NDArray[np.intp] | BoolArray) -> Self:
        """Return the layouts at `index`, or those where it is true."""
        return replace(self, **{field.name: getattr(self, field.name)[index] for field in fields(self)})

    @classmethod
    def concatenate(cls, batches: list[Self]) -> Self:
        return cls(**{f.name: np.concatenate([getattr(batch, f.name) for batch in batches]) for f in fields(cls)})


OTHER_NAMES = {"mbs": "micro_batch", "gbs": "global_batch"}


def row_of(layout: Layout) -> dict[str, int | bool]:
    """Return the columns of one layout; its ranks must be divisible by tp*pp*cp."""
    row = {field.name: getattr(layout, OTHER_NAMES.get(field.name, field.name)) for field in fields(LayoutBatch)}
    codes = {"recompute": RECOMPUTE_NAMES.index(layout.recompute), "schedule": SCHEDULES.index(layout.schedule)}
    return row | codes


def layout_at(batch: LayoutBatch, index: int) -> Layout:
    """Return one row of a batch."""
    names = {field.name: OTHER_NAMES.get(field.name, field.name) for field in fields(batch) if field.name != "dp"}
    values = {name: getattr(batch, column)[index].item() for column, name in names.items()}
    values["recompute"] = RECOMPUTE_NAMES[values["recompute"]]
    values["schedule"] = SCHEDULES[values["schedule"]]
    return Layout(num_gpus=int(batch.num_gpus[index]), **values)


def rows_like(batch: LayoutBatch, layout: Layout) -> BoolArray:
    """Return which rows of a batch are a given layout."""
    rows: BoolArray = batch.num_gpus == layout.num_gpus
    for name, value in row_of(layout).items():
        rows = rows & (getattr(batch, name) == value)
    return rows


def batch_of(layouts: Sequence[Layout]) -> LayoutBatch:
    """Return layouts as a batch."""
    rows = [row_of(layout) for layout in layouts]
    return LayoutBatch.of(**{field.name: [row[field.name] for row in rows] for field in fields(LayoutBatch)})


PIECE = 4096
"""Rows that are multiplied by an axis at a time, so that a large space is never in memory at once."""


@dataclass(frozen=True, slots=True)
class PointTable:
    """Points as rows: the values of each parameter, and every row's index into them."""

    values: Mapping[str, Sequence[Value]]
    places: Mapping[str, IntArray]
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
        return np.asarray(self.values[name])[self.places[name]]

    def times(self, name: str, values: Sequence[Value]) -> PointTable:
        """Return every row with each of these values, in the order of nested loops."""
        places = {known: np.repeat(column, len(values)) for known, column in self.places.items()}
        places[name] = np.tile(np.arange(len(values), dtype=np.int32), self.num_rows)
        return PointTable({**self.values, name: values}, places, self.num_rows * len(values))

    def take(self, rows: slice | BoolArray | npt.NDArray[np.intp]) -> PointTable:
        kept = np.arange(self.num_rows)[rows]
        return PointTable(self.values, {name: column[kept] for name, column in self.places.items()}, len(kept))

    def point(self, row: int) -> Params:
        return {name: values[self.places[name][row]] for name, values in self.values.items()}


def grow(
    table: PointTable, axes: Sequence[tuple[str, Sequence[Value]]], holds: Callable[[str, PointTable], BoolArray]
) -> Iterator[PointTable]:
    """Yield pieces of the table of all axes, without the rows that fail `holds` once an axis is chosen."""
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
    """Return layouts over `num_gpus` GPUs; one whose sizes do not divide them has another `num_gpus`."""
    tp, pp, cp = (np.asarray(columns.get(name, 1), np.int32) for name in ("tp", "pp", "cp"))
    return LayoutBatch.of(**columns, dp=np.maximum(num_gpus // (tp * pp * cp), 1))
