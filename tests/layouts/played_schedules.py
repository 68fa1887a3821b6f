"""A pipeline's schedules, played event by event in the order that torch.distributed.pipelining gives each rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

NAMES = {
    "1f1b": "Interleaved1F1B",
    "gpipe": "LoopedBFS",
    "zero-bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
FORWARD, INPUT, WEIGHT, BOTH = "FORWARD", "BACKWARD_INPUT", "BACKWARD_WEIGHT", "FULL_BACKWARD"

Work = tuple[str, int, int]
"""What is done, the chunk of the model, and the micro-batch."""


@dataclass(frozen=True)
class Played:
    """What came of a schedule."""

    bubble: float
    """Time beyond the work of a rank."""
    held: list[int]
    """The most chunks whose activations each rank held at once."""


def orders(name: str, ranks: int, chunks: int, micro_batches: int) -> list[list[Work]]:
    """Return the work of each rank in order."""
    kind = schedules.get_schedule_class(NAMES[name])
    found: Any = object.__new__(kind)
    found.pp_group_size, found.n_local_stages, found._n_microbatches = ranks, chunks, micro_batches
    found.num_stages = found._num_stages = ranks * chunks
    found._stages = [None] * chunks
    found.number_of_rounds = max(1, micro_batches // ranks)
    found.microbatches_per_round = micro_batches // found.number_of_rounds
    return [_order(found, rank) for rank in range(ranks)]


def _order(schedule: Any, rank: int) -> list[Work]:
    actions = [action for action in schedule._calculate_single_rank_operations(rank) if action is not None]
    single = [each for action in actions for each in action.sub_actions or (action,)]
    return [(each.computation_type.name, each.stage_index, each.microbatch_index) for each in single]


def play(name: str, ranks: int, chunks: int, micro_batches: int, *, f: float, b: float, w: float) -> Played:
    """Run every rank's work in order, each piece as soon as its inputs are there."""
    plans, last = orders(name, ranks, chunks, micro_batches), ranks * chunks - 1
    seconds = {FORWARD: f, INPUT: b, WEIGHT: w, BOTH: b + w}
    free, done = [0.0] * ranks, [0] * ranks
    held, most = [0] * ranks, [0] * ranks
    forward: dict[tuple[int, int], float] = {}
    backward: dict[tuple[int, int], float] = {}
    while sum(done) < sum(map(len, plans)):
        before = sum(done)
        for rank, plan in enumerate(plans):
            while done[rank] < len(plan):
                kind, chunk, batch = plan[done[rank]]
                if kind == FORWARD:
                    ready = forward.get((chunk - 1, batch)) if chunk else 0.0
                elif kind == WEIGHT:
                    ready = backward.get((chunk, batch))
                else:
                    ready = forward.get((chunk, batch)) if chunk == last else backward.get((chunk + 1, batch))
                if ready is None:
                    break
                free[rank] = max(ready, free[rank]) + seconds[kind]
                done[rank] += 1
                if kind in (FORWARD, INPUT, BOTH):
                    (forward if kind == FORWARD else backward)[chunk, batch] = free[rank]
                held[rank] += (kind == FORWARD) - (kind in (WEIGHT, BOTH))
                most[rank] = max(most[rank], held[rank])
        assert sum(done) > before, "the schedule hangs"
    return Played(bubble=max(free) - micro_batches * chunks * (f + b + w), held=most)
