from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.layouts.played_schedules import NAMES, play
from zenith_tune.layouts.layout import FOLDED, SCHEDULES
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.layouts.schedules import bubble_share, chunk_of, last_chunk_rank, micro_batches_in_flight

TIMES = [(1.0, 1.0, 1.0), (1.0, 1.3, 0.9), (1.0, 1.05, 0.6), (1.0, 2.2, 0.9)]
"""Forward, backward for inputs and for weights: all alike, with attention, with messages, with full recomputation."""


def layouts(name: str, ranks: int, micro_batches: int, rows: int = 1) -> LayoutBatch:
    return LayoutBatch.of(pp=[ranks] * rows, vp=2, gbs=micro_batches, schedule=SCHEDULES.index(name))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize(("f", "b", "w"), TIMES)
def test_the_bubble_is_that_of_the_schedule_played(name: str, ranks: int, f: float, b: float, w: float) -> None:
    whole, batch = f + b + w, layouts(name, ranks, 4 * ranks)
    bubble = (ranks - 1) * whole * bubble_share(batch, np.array([f / whole]), np.array([w / whole]))[0]
    assert bubble == pytest.approx(play(name, ranks, 2, 4 * ranks, f=f, b=b, w=w).bubble)


@pytest.mark.parametrize(
    ("name", "chunks", "bubble", "held"),
    [("1f1b", 1, 21.0, 8.0), ("zero-bubble", 1, 7.0, 8.0), ("1f1b", 2, 10.5, 11.5), ("zbv", 2, 3.5, 8.0)],
)
def test_bubble_and_memory_are_those_of_primus_own_simulation(
    name: str, chunks: int, bubble: float, held: float
) -> None:
    # Figure of its article (AMD, 2026-02): 8 ranks, 32 micro-batches, three passes of one unit each.
    batch = LayoutBatch.of(pp=8, vp=chunks, gbs=32, schedule=SCHEDULES.index(name))
    third = np.full(1, 1 / 3)
    assert 7 * 3 / chunks * bubble_share(batch, third, third)[0] == pytest.approx(bubble)
    assert micro_batches_in_flight(batch, np.zeros(1))[0] == held


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("rounds", [2, 4])
def test_what_each_rank_holds_is_that_of_the_schedule_played(name: str, ranks: int, rounds: int) -> None:
    batch = layouts(name, ranks, rounds * ranks, ranks)
    held = 2 * micro_batches_in_flight(batch, np.arange(float(ranks)))
    assert held.tolist() == play(name, ranks, 2, rounds * ranks, f=1.0, b=1.3, w=0.9).held


def test_each_weight_of_a_checkpointed_layer_recomputes_it_where_the_backward_pass_is_split() -> None:
    torch = pytest.importorskip("torch")
    backward, runs = pytest.importorskip("torch.distributed.pipelining._backward"), []
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))

    def layer(x: Any) -> Any:
        runs.append(x)
        return layers(x)

    x = torch.randn(2, 4, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
    _, groups = backward.stage_backward_input([y], [torch.ones_like(y)], [x], layers.parameters())
    assert len(runs) == 2
    backward.stage_backward_weight(layers.parameters(), groups)
    assert len(runs) == 2 + len(layers)


def test_the_first_rank_of_a_folded_pipeline_has_the_loss() -> None:
    assert [last_chunk_rank(layouts(name, 4, 8))[0] == 0 for name in SCHEDULES] == [
        name in FOLDED for name in SCHEDULES
    ]


def test_stages_hold_micro_batches_as_published() -> None:
    batch = LayoutBatch.of(pp=4, vp=[1, 1, 2, 2], gbs=[8, 2, 8, 8], schedule=[0, 0, 0, SCHEDULES.index("zbv")])
    assert micro_batches_in_flight(batch, np.zeros(4)).tolist() == [4.0, 2.0, 5.5, 4.0]


def test_a_schedule_that_puts_off_weights_waits_less() -> None:
    batch = LayoutBatch.of(pp=4, vp=2, schedule=[0, SCHEDULES.index("zbv")])
    assert bubble_share(batch, np.full(2, 0.25), np.full(2, 0.25)).tolist() == [1.0, 0.5]


def test_a_folded_schedule_has_the_mirrored_chunk() -> None:
    assert chunk_of(LayoutBatch.of(pp=4, vp=2, schedule=[0, SCHEDULES.index("zbv")]), np.ones(2), 1).tolist() == [
        5.0,
        6.0,
    ]
