"""The places of modules, and how their lanes share samples."""

from __future__ import annotations

import pytest

from zenith_mimo.planning.config import MimoLayout, ModuleLayout, lane_partners, rows_of_lanes
from zenith_tune.errors import UsageError


def layout(**modules: ModuleLayout) -> MimoLayout:
    return MimoLayout(modules=modules)


def test_modules_share_all_ranks_or_none() -> None:
    shared = layout(vision=ModuleLayout(tp=2, dp=4), language=ModuleLayout(tp=4, dp=2))
    apart = layout(vision=ModuleLayout(tp=2), language=ModuleLayout(tp=2, pp=3, offset=2))
    assert (shared.is_colocated, shared.world_size) == (True, 8)
    assert (apart.is_colocated, apart.world_size) == (False, 8)


@pytest.mark.parametrize(
    ("modules", "message"),
    [
        ({"vision": ModuleLayout()}, "'language'"),
        ({"vision": ModuleLayout(tp=2), "language": ModuleLayout(offset=1)}, "gap or overlap"),
        ({"vision": ModuleLayout(), "language": ModuleLayout(offset=2)}, "gap or overlap"),
        ({"vision": ModuleLayout(dp=2), "language": ModuleLayout(dp=3, offset=2)}, r"\b2\b.*\b3\b"),
        ({"vision": ModuleLayout(pp=2), "language": ModuleLayout(tp=2)}, "vision.* pp 2"),
        ({"vision": ModuleLayout(offset=1), "language": ModuleLayout(offset=1)}, "rank 0"),
    ],
)
def test_a_layout_that_cannot_be_trained_is_refused(modules: dict[str, ModuleLayout], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        layout(**modules)


def test_degrees_and_offsets_are_checked() -> None:
    with pytest.raises(UsageError, match=r"tp.*got 0"):
        ModuleLayout(tp=0)
    for name in ("cp", "ep"):
        with pytest.raises(UsageError, match=rf"{name} 2"):
            ModuleLayout(**{name: 2})
    with pytest.raises(UsageError, match=r"offset.*got -1"):
        ModuleLayout(offset=-1)


def test_a_stage_knows_how_many_follow_it_through_the_graph() -> None:
    two = layout(
        vision=ModuleLayout(pp=2), audio=ModuleLayout(dp=2, offset=2), language=ModuleLayout(pp=2, dp=2, offset=4)
    )
    assert [two.stages_after("vision", stage) for stage in range(2)] == [3, 2]
    assert two.stages_after("audio", 0) == 2
    assert [two.stages_after("language", stage) for stage in range(2)] == [1, 0]


def test_micro_batches_are_counted_by_the_language_model_and_shared_by_every_encoder() -> None:
    fan_in = layout(vision=ModuleLayout(dp=4), language=ModuleLayout(offset=4))
    assert fan_in.num_microbatches(4, 16) == 4
    with pytest.raises(UsageError, match=r"1 \* 1 = 1 and 4"):
        fan_in.num_microbatches(1, 16)
    with pytest.raises(UsageError, match=r"got 10 and 4 \* 1 = 4"):
        fan_in.num_microbatches(4, 10)


def test_lanes_that_share_samples_are_partners() -> None:
    assert lane_partners(1, dp=2, other_dp=4) == [2, 3]
    assert lane_partners(3, dp=4, other_dp=2) == [1]


def test_samples_are_shared_evenly_over_lanes() -> None:
    assert rows_of_lanes([2, 0, 1, 3], 2) == [2, 4]
