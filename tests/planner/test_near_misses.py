from __future__ import annotations

from dataclasses import replace

import pytest

from tests.mentions import mentions
from tests.planner.planners import planner
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.neighbours import memory_misses, memory_reason
from zenith_tune.planner.plan import PRESSURE, PlannedLayout

LAYOUT = Layout(num_gpus=64, tp=4, pp=4, zero=1, sequence_parallel=True, global_batch=512)


@pytest.fixture
def tight() -> PlannedLayout:
    """Return a layout that fits by a hair: memory to spare, but a risk above the limit."""
    planned = planner("llama3-70b", "h100x64").evaluate([LAYOUT])[0]
    memory = planned.capacity_bytes - 2**28
    return replace(planned, memory_bytes=memory, oom_probability=0.312)


def test_a_layout_that_fits_by_a_hair_is_explained_by_its_risk(tight: PlannedLayout) -> None:
    assert "31%" in memory_reason(tight) and "78.9 of 79.1 GiB" in memory_reason(tight)
    (miss,) = memory_misses([tight], None, risk=0.3, evaluate_neighbours=lambda layout: [])
    assert mentions(miss.hint, "--risk 0.32")


def test_with_room_a_layout_loses_what_a_full_memory_costs(tight: PlannedLayout) -> None:
    slow = replace(tight, step_s=tight.step_s + 5.0, time_parts={**tight.time_parts, PRESSURE: 5.0})
    roomy = slow.with_room()
    assert roomy.step_s == pytest.approx(slow.step_s - 5.0) and PRESSURE not in roomy.time_parts
    assert roomy.tokens_per_s * roomy.step_s == pytest.approx(slow.tokens_per_s * slow.step_s)
    assert roomy.with_room().step_s == roomy.step_s
