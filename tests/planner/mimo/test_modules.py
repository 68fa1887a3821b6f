"""The places of modules, and how their lanes share samples."""

from __future__ import annotations

from zenith_tune.planner.mimo.modules import MimoLayout, ModuleLayout, lane_partners, rows_of_lanes


def test_a_world_is_as_large_as_its_modules() -> None:
    modules = {"vision": ModuleLayout(tp=2), "language": ModuleLayout(tp=2, pp=3, offset=2)}
    assert MimoLayout(modules=modules).world_size == 8


def test_lanes_that_share_samples_are_partners() -> None:
    assert lane_partners(1, dp=2, other_dp=4) == [2, 3]
    assert lane_partners(3, dp=4, other_dp=2) == [1]


def test_samples_are_shared_evenly_over_lanes() -> None:
    assert rows_of_lanes([2, 0, 1, 3], 2) == [2, 4]
