"""The examples of plan."""

from __future__ import annotations

from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.plan import changes, halvings


def test_changes_between_layouts_are_listed() -> None:
    assert (
        changes(Layout(num_gpus=8, tp=2), Layout(num_gpus=8, tp=4, recompute="selective"))
        == "tp 2 -> 4, dp 4 -> 2, recompute none -> selective"
    )


def test_gpus_are_halved_down_to_an_eighth() -> None:
    assert halvings(64) == [64, 32, 16, 8]
    assert halvings(6) == [6, 3]
