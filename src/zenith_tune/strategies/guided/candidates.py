"""The layouts that guided tuning chooses from, each with one point for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import LayoutBatch, PointTable, batch_of, rows_like
from zenith_tune.strategies.base import TunedJob
from zenith_tune.study.parameters import Params, Value

Places = npt.NDArray[np.intp]
MAX_CANDIDATES = 200_000
"""More layouts than a handful of trials can tell apart, and each trial would take seconds to learn from."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Layouts and their points; of points with the same layout the first is tried."""

    batch: LayoutBatch
    point: Callable[[int], Params]
    points: Callable[[int], Sequence[Params]] = lambda row: ()
    """Every point of a row's layout, where points are listed one by one: they may differ in what no layout has."""

    @classmethod
    def of_job(cls, job: TunedJob, *, has_experts: bool = True) -> Candidates | None:
        """Return the first point of each layout; a model without experts has no expert parallelism to distinguish."""
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
    found: dict[Layout, list[Params]] = {}
    firsts: dict[Layout, Layout] = {}
    for point in points:
        layout = layout_of(point)
        if layout is None:
            continue
        key = layout if has_experts else replace(layout, ep=1, etp=1)
        if firsts.setdefault(key, layout) == layout:
            found.setdefault(key, []).append(point)
        if len(found) >= MAX_CANDIDATES:
            break
    groups = [*found.values()]
    return Candidates(batch_of([*found]), lambda row: groups[row][0], groups.__getitem__) if found else None


def _of_tables(tables: Iterable[tuple[LayoutBatch, PointTable]], has_experts: bool) -> Candidates | None:
    pieces: list[PointTable] = []
    batches: list[LayoutBatch] = []
    places: list[Places] = []
    """Table and row of each layout's point."""
    for layouts, table in tables:
        one = np.ones(len(table), np.int32)
        batches.append(layouts if has_experts else replace(layouts, ep=one, etp=one))
        places.append(np.column_stack([one * len(pieces), np.arange(len(table))]))
        pieces.append(table)
        if sum(map(len, places)) >= MAX_CANDIDATES:
            batch, rows = _without_twins(batches, places)
            batches, places = [batch], [rows]
            if len(rows) >= MAX_CANDIDATES:
                break
    if not batches:
        return None
    batch, rows = _without_twins(batches, places)
    return Candidates(
        batch.take(np.arange(len(batch)) < MAX_CANDIDATES), lambda i: pieces[rows[i][0]].point(rows[i][1])
    )


def _without_twins(batches: list[LayoutBatch], places: list[Places]) -> tuple[LayoutBatch, Places]:
    batch = type(batches[0]).concatenate(batches)
    columns = [getattr(batch, field.name) for field in fields(batch)]
    codes = [np.unique(column, return_inverse=True)[1] for column in columns if (column != column[0]).any()]
    firsts = np.unique(np.column_stack(codes), axis=0, return_index=True)[1] if codes else np.zeros(1, np.intp)
    firsts.sort()
    return batch.take(firsts), np.concatenate(places)[firsts]
