"""The layouts that guided tuning chooses from, each with one point that stands for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch, batch_of, rows_like
from zenith_tune.layouts.points import PointTable
from zenith_tune.strategies.base import TunedJob
from zenith_tune.study.parameters import Params, Value

MAX_CANDIDATES = 200_000
"""More are not told apart by a handful of trials, and take seconds to weigh after each."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Hold layouts and their points; points that differ in nothing that a layout has are one run under two names."""

    batch: LayoutBatch
    point: Callable[[int], Params]
    """The point that stands for a row."""

    @classmethod
    def of_job(cls, job: TunedJob, *, has_experts: bool = True) -> Candidates | None:
        """Return the first point of each layout; how experts are split says nothing of a model that has none."""
        tables = job.tables()
        if tables is not None:
            return _of_tables(tables, has_experts)
        return _of_points(job.points(), job.layout, has_experts)

    def index_of(self, layout: Layout) -> int | None:
        """Return the row of a layout, if it is among these."""
        rows = rows_like(self.batch, layout)
        return int(np.argmax(rows)) if rows.any() else None

    def __len__(self) -> int:
        return len(self.batch)


def _of_points(
    points: Iterable[Params], layout_of: Callable[[Mapping[str, Value]], Layout | None], has_experts: bool
) -> Candidates | None:
    found: dict[Layout, Params] = {}
    for point in points:
        layout = layout_of(point)
        if layout is None:
            continue
        found.setdefault(layout if has_experts else replace(layout, ep=1, etp=1), point)
        if len(found) >= MAX_CANDIDATES:
            break
    return Candidates(batch_of([*found]), [*found.values()].__getitem__) if found else None


def _of_tables(tables: Iterable[tuple[LayoutBatch, PointTable]], has_experts: bool) -> Candidates | None:
    batch: LayoutBatch | None = None
    pieces: list[PointTable] = []
    rows = np.empty((0, 2), np.intp)
    """Of each layout, the table and the row of its point."""
    for layouts, table in tables:
        if not has_experts:
            layouts = replace(layouts, ep=np.ones_like(layouts.ep), etp=np.ones_like(layouts.etp))
        more = np.column_stack([np.full(len(table), len(pieces)), np.arange(len(table))])
        pieces.append(table)
        batch = layouts if batch is None else type(layouts).concatenate([batch, layouts])
        rows = np.concatenate([rows, more])
        first = _firsts(batch)
        batch, rows = batch.take(first), rows[first]
        if len(rows) >= MAX_CANDIDATES:
            break
    if batch is None:
        return None
    return Candidates(
        batch.take(np.arange(len(rows)) < MAX_CANDIDATES), lambda row: pieces[rows[row][0]].point(rows[row][1])
    )


def _firsts(batch: LayoutBatch) -> BoolArray:
    """Tell which rows are the first of their layout."""
    columns = [np.unique(getattr(batch, field.name), return_inverse=True)[1] for field in fields(batch)]
    is_first = np.zeros(len(batch), np.bool_)
    is_first[np.unique(np.column_stack(columns), axis=0, return_index=True)[1]] = True
    return is_first
