"""The examples of layout batch."""

from __future__ import annotations

from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import LayoutBatch, PointTable, layout_at, row_of, rows_like


def test_a_batch_is_built_from_columns() -> None:
    batch = LayoutBatch.of(tp=[1, 2], dp=[8, 4], gbs=16)
    assert batch.num_micro_batches.tolist() == [2, 4]


def test_a_layout_is_a_row() -> None:
    assert row_of(Layout(num_gpus=8, tp=2))["dp"] == 4


def test_a_row_is_a_layout() -> None:
    assert layout_at(LayoutBatch.of(tp=[1, 2], dp=[8, 4], gbs=16), 1).num_gpus == 8


def test_a_layout_is_found_in_a_batch() -> None:
    assert rows_like(LayoutBatch.of(tp=[1, 2], dp=[8, 4]), Layout(num_gpus=8, tp=2)).tolist() == [False, True]


def test_a_table_of_points_is_a_product() -> None:
    table = PointTable.of_one().times("tp", (1, 2)).times("sp", (True, False))
    assert [table.point(row) for row in (0, 3)] == [{"tp": 1, "sp": True}, {"tp": 2, "sp": False}]
