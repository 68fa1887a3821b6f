"""Inside the best stage: the keys that are left, by grid, at random or by a model."""

from __future__ import annotations

import re

import pytest

from tests.strategies.zero_progressive.subjects import subject
from tests.strategies.zero_progressive.worlds import Point, Search, World, growing, search, space
from zenith_tune.strategies.zero_progressive.inside import Proposals
from zenith_tune.strategies.zero_progressive.strategy import ZeroProgressiveStrategy
from zenith_tune.study.parameters import Direction
from zenith_tune.units import GIB

BUCKETS = (500_000_000, 50_000_000, 5_000_000)


def with_keys(point: Point) -> float:
    bonus = 1.05 if not point["overlap_comm"] else 1.0
    return growing(point) * bonus * (1.03 if point["reduce_bucket_size"] == BUCKETS[1] else 1.0)


def found_with(strategy: ZeroProgressiveStrategy, num_slots: int = 1) -> Search:
    world = World(speed=with_keys, edges={0: 0, 1: 0})
    keys = space(overlap_comm=(True, False), reduce_bucket_size=BUCKETS)
    return search(world, keys, strategy=strategy, num_slots=num_slots)


@pytest.mark.parametrize("inside", ["grid", "random", "model"])
@pytest.mark.parametrize("num_slots", [1, 3])
def test_the_best_keys_are_found_at_the_best_micro_batch(inside: str, num_slots: int) -> None:
    found = found_with(ZeroProgressiveStrategy(inside=inside), num_slots)
    best = max(found.world.runs, key=with_keys)
    assert (best["overlap_comm"], best["reduce_bucket_size"], best["mbs"]) == (False, BUCKETS[1], 16)
    findings = found.strategy.findings()
    assert findings is not None
    assert {row[0]: row[2] for row in findings.rows}["stage 2"] == "922.9 samples/s"
    assert re.match(r".*stage 2: 5 runs .*overlap_comm, reduce_bucket_size", findings.lines[0])


def test_keys_without_effect_at_the_best_stage_are_left_alone() -> None:
    world = World(speed=lambda point: growing(point) * (2 if point["stage"] == 2 else 1), edges={0: 0, 1: 0})
    search(world, space(overlap_comm=(True, False), stage3_prefetch_bucket_size=(5, 50)))
    assert all(run["stage3_prefetch_bucket_size"] == 5 for run in world.runs)
    assert any(not run["overlap_comm"] for run in world.runs)


def test_a_skipped_stage_with_keys_of_its_own_runs_once_and_close_behind_its_keys_are_searched() -> None:
    def with_overlap(point: Point) -> float:
        return growing(point) * (1.1 if point["stage"] == 2 and point["overlap_comm"] else 1.0)

    world = World(speed=with_overlap)
    found = search(world, space(overlap_comm=(False, True)))
    assert world.at(1) == [] and world.at(2) == [16, 16]
    assert max(world.runs, key=with_overlap) == {"stage": 2, "mbs": 16, "overlap_comm": True}
    assert any(re.match(r"stage 2 .*skipped .*one run: ", line) for line in found.notes)
    assert any(re.match(r"stage 1 .*skipped: ", line) for line in found.notes)


def test_a_stage_far_behind_has_its_keys_left_alone() -> None:
    world = World(speed=lambda point: growing(point) * (0.5 if int(point["stage"]) >= 2 else 1.0))
    search(world, space(overlap_comm=(False, True)))
    assert world.at(2) == [16] and world.at(3) == [16]


def test_where_nothing_runs_the_keys_that_take_the_least_memory_are_tried() -> None:
    def needs_small_buckets(point: Point) -> str | None:
        return "too large" if int(point["reduce_bucket_size"]) > 50 else None

    world = World(pruned=needs_small_buckets, edges={1: 2})
    search(world, space(stages=(1,), reduce_bucket_size=(500, 50)))
    assert world.at(1)[:1] == [1] and 2 in world.at(1)


def test_small_buffers_are_tried_where_they_leave_room_for_a_larger_micro_batch() -> None:
    job = subject()
    room = job.capacity_bytes - job.states({"stage": 2, "mbs": 1, "reduce_bucket_size": 50}).total
    sample = room / 4.05  # four samples fit, but not next to large buckets

    def peak(point: Point) -> float:
        return job.states(point).total + sample * int(point["mbs"])

    def too_large(point: Point) -> bool:
        return peak(point) > job.capacity_bytes

    world = World(peak=peak, fits=lambda point: not too_large(point))
    keys = space((1, 2, 4), stages=(2,), reduce_bucket_size=(2_000_000_000, 50))
    findings = search(world, keys, subject=job).strategy.findings()
    assert findings is not None and findings.rows[1][:1] + findings.rows[1][3:4] == ("stage 2, small buffers", "4")


def test_so_many_runs_without_gain_are_the_end() -> None:
    values = tuple(range(1, 31))
    world = World()
    search(world, space(gradient_clipping=values), strategy=ZeroProgressiveStrategy(patience=4))
    assert sum(run["gradient_clipping"] != 1 for run in world.runs) == 4


def test_a_gain_restarts_the_count() -> None:
    world = World(speed=lambda point: growing(point) + (1 if int(point["gradient_clipping"]) == 3 else 0))
    search(world, space(gradient_clipping=tuple(range(1, 31))), strategy=ZeroProgressiveStrategy(patience=4))
    assert sum(run["gradient_clipping"] != 1 for run in world.runs) == 2 + 4


def test_the_number_of_runs_inside_is_limited() -> None:
    world = World(speed=lambda point: growing(point) + int(point["gradient_clipping"]))
    strategy = ZeroProgressiveStrategy(inside_trials=7)
    search(world, space(gradient_clipping=tuple(range(1, 31))), strategy=strategy)
    assert sum(run["gradient_clipping"] != 1 for run in world.runs) == 7


def test_a_point_that_memory_forbids_is_not_run() -> None:
    job = subject()

    def peak(point: Point) -> float:
        return job.states(point).total + 10 * GIB * int(point["mbs"])

    world = World(peak=peak, edges={2: 4})
    search(world, space(stages=(2,), reduce_bucket_size=(50_000_000, 9_000_000_000, 100_000_000)), subject=job)
    assert {run["reduce_bucket_size"] for run in world.runs} == {50_000_000, 100_000_000}


def test_keys_are_searched_although_the_arithmetic_would_not_have_let_their_stage_run() -> None:
    job = subject()
    world = World(peak=lambda point: 1.1 * job.capacity_bytes)
    search(world, space((1,), stages=(2,), reduce_bucket_size=(50_000_000, 100_000_000)), subject=job)
    assert {run["reduce_bucket_size"] for run in world.runs} == {50_000_000, 100_000_000}


def test_what_the_preset_prunes_counts_for_nothing() -> None:
    world = World(pruned=lambda point: "odd" if int(point["gradient_clipping"]) % 2 == 0 else None)
    search(world, space(gradient_clipping=tuple(range(1, 12))), strategy=ZeroProgressiveStrategy(patience=4))
    assert sum(run["gradient_clipping"] != 1 for run in world.runs) == 4


def test_a_grid_of_proposals_has_no_point_twice() -> None:
    axes = {"overlap_comm": (True, False), "reduce_scatter": (True, False)}
    points = Proposals("grid", axes, {"stage": 2, "overlap_comm": True, "reduce_scatter": True})
    assert [tuple(point.values()) for point in points.next(3, [], Direction.MAXIMIZE)] == [
        (2, True, False),
        (2, False, True),
        (2, False, False),
    ]
