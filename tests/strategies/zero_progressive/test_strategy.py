from __future__ import annotations

import math
import re
from collections.abc import Mapping

import pytest

from tests.strategies.zero_progressive.subjects import subject
from tests.strategies.zero_progressive.worlds import Point, World, growing, search, space
from zenith_tune.errors import TrialExhausted, UsageError
from zenith_tune.strategies.zero_progressive.strategy import ZeroProgressiveStrategy
from zenith_tune.study.parameters import Direction, IntParameter, Parameter, Value
from zenith_tune.testing import StrategyContract
from zenith_tune.units import GIB

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)


class TestContract(StrategyContract):
    def make(self) -> ZeroProgressiveStrategy:
        return ZeroProgressiveStrategy()

    def space(self) -> dict[str, Parameter]:
        return space(overlap_comm=(True, False), reduce_bucket_size=(5, 50), offload_optimizer=("none", "cpu"))

    def value(self, params: Mapping[str, Value]) -> float | None:
        return None if int(params["mbs"]) > 4 * (1 + int(params["stage"])) else growing(params)


def test_the_first_run_is_a_profile_at_the_smallest_micro_batch() -> None:
    found = search(World(), space((2, 4, 8)))
    assert found.world.runs[0] == {"stage": 0, "mbs": 2}
    assert found.world.whys[0].startswith("profiling run")


@pytest.mark.parametrize("edge", SIZES)
def test_the_edge_is_found_in_few_runs_wherever_it_is(edge: int) -> None:
    world = World(edges=dict.fromkeys(range(4), edge))
    found = search(world, space(SIZES, stages=(0,)))
    promised = math.ceil(math.log2(len(SIZES) - 1)) + 1
    assert len(world.runs) <= 1 + promised + (edge not in SIZES[-2:])  # the profile, and at most one neighbour
    findings = found.strategy.findings()
    assert findings is not None and findings.rows[0][4] == str(edge)


def test_measured_memory_leads_to_the_edge_at_once() -> None:
    job = subject()

    def peak(point: Point) -> float:
        return job.states(point).total + 4 * GIB * int(point["mbs"])

    room = job.capacity_bytes - job.states({"stage": 1, "mbs": 1}).total
    edge = int(room / (4 * GIB))
    world = World(peak=peak, edges={1: edge}, broken=(0,))
    search(world, space(tuple(range(1, 40)), stages=(1,)), subject=job)
    assert world.at(1)[:3] == [1, edge, edge + 1]


@pytest.mark.parametrize(("gain", "last"), [(0.02, 16), (0.005, 2)])
def test_growth_ends_where_a_step_gains_less_than_one_percent(gain: float, last: int) -> None:
    world = World(speed=lambda point: 100 * (1 + gain) ** math.log2(int(point["mbs"])))
    search(world, space((1, 2), stages=(0,)))
    assert max(world.at(0)) == 2
    world = World(speed=lambda point: 100 * (1 + gain) ** math.log2(int(point["mbs"])), edges={0: 16})
    found = search(world, space((1, 2, 4, 8, 16, 32), stages=(0, 1)))
    assert ("growth had ended" in found.reasons["stage 1"]) == (last == 2)


def test_the_plateau_is_settable() -> None:
    def slow_growth(point: Point) -> float:
        return 100 + int(point["mbs"])  # about 1% for each sample

    patient = World(speed=slow_growth)
    search(patient, space((1, 2, 3, 4), stages=(0,)), strategy=ZeroProgressiveStrategy(plateau=0.001))
    hasty = World(speed=slow_growth)
    search(hasty, space((1, 2, 3, 4), stages=(0,)), strategy=ZeroProgressiveStrategy(plateau=0.5))
    assert 4 in patient.at(0) and 4 not in hasty.at(0)


def test_a_peak_between_the_runs_is_found_where_growth_ends() -> None:
    world = World(speed=lambda point: 100 - abs(int(point["mbs"]) - 6))
    search(world, space((1, 2, 4, 6, 8, 12, 16), stages=(0,)))
    best = max(world.runs, key=world.speed)
    assert best["mbs"] == 6


def test_a_stage_is_skipped_where_a_lower_one_runs_the_largest_micro_batch() -> None:
    found = search(World())
    assert found.world.at(1) == found.world.at(2) == found.world.at(3) == []
    assert "micro-batch 16, " in found.reasons["stage 1"] and "largest" in found.reasons["stage 1"]
    assert any(line.startswith("stage 3 ") and "skipped: " in line for line in found.notes)


def test_a_stage_is_skipped_where_its_micro_batch_cannot_be_larger_and_the_arithmetic_says_so() -> None:
    job = subject()

    def peak(point: Point) -> float:
        return job.states(point).total + 9 * GIB * int(point["mbs"])

    edges = {
        stage: int((job.capacity_bytes - job.states({"stage": stage, "mbs": 1}).total) / (9 * GIB))
        for stage in (1, 2, 3)
    }
    found = search(World(peak=peak, edges={0: 0, **edges}), space(), subject=job)
    assert edges == {1: 3, 2: 4, 3: 6}
    assert found.world.at(1) == [1, 2, 4] and found.world.at(2) == [4] and found.world.at(3) == []
    assert "the 4" in found.reasons["stage 3"]
    assert re.search(r"bytes .*stage 3; activations measured", found.reasons["stage 3"])


def test_a_higher_stage_is_tried_with_larger_micro_batches_alone() -> None:
    world = World(edges={0: 2, 1: 8, 2: 8, 3: 16})
    search(world)
    assert min(world.at(1)) > 2 and min(world.at(2)) > 8 and 16 in world.at(3)


def test_a_higher_stage_is_tried_from_the_smallest_where_lower_ones_do_not_fit() -> None:
    found = search(World(edges={0: 0, 1: 0, 2: 4, 3: 4}))
    assert found.world.at(0) == found.world.at(1) == [1]
    assert found.world.at(2)[0] == 1 and 4 in found.world.at(2)
    assert re.match(r"micro-batch 1 .*\(oom\): CUDA out of memory$", found.reasons["stage 0"])


def test_a_stage_that_is_pruned_costs_no_run_and_its_reason_is_kept() -> None:
    why = "needs 161 GiB of 79 GiB"
    found = search(World(pruned=lambda point: why if point["stage"] == 0 else None))
    assert found.world.at(0) == []
    assert re.match(rf"micro-batch 1 .*: {why}$", found.reasons["stage 0"])


def test_a_stage_that_breaks_does_not_end_the_search() -> None:
    found = search(World(broken=(0, 2), edges={1: 2}))
    assert found.world.at(0) == [1] and 2 in found.world.at(1) and found.world.at(3)
    assert "(error): RuntimeError: broken" in found.reasons["stage 2"]


def test_a_stage_that_promises_too_little_is_skipped() -> None:
    # From micro-batch 8 on, p = a + b / m leaves less than 1% to gain.
    world = World(speed=lambda point: 1 / (1 + 0.05 / int(point["mbs"])), edges={0: 8})
    found = search(world, space((1, 8, 16), stages=(0, 1)), strategy=ZeroProgressiveStrategy(plateau=0.01))
    assert world.at(1) == []
    assert re.match(r"micro-batch 16 .*\+0\.3%$", found.reasons["stage 1"])


def test_a_run_that_is_short_of_memory_is_no_end_of_growth() -> None:
    job = subject()
    fixed = {stage: job.states({"stage": stage, "mbs": 1}).total for stage in (1, 2)}
    sample = (job.capacity_bytes - fixed[1]) / 8.1  # micro-batch 8 fills the memory at stage 1, and not at stage 2

    def peak(point: Point) -> float:
        return fixed[int(point["stage"])] + sample * int(point["mbs"])

    def speed(point: Point) -> float:
        return growing(point) * (0.8 if peak(point) > 0.9 * job.capacity_bytes else 1.0)

    world = World(speed=speed, peak=peak, edges={1: 8, 2: 8})
    search(world, space(stages=(1, 2)), subject=job)
    assert world.at(1)[0] == 1 and {4, 8} <= set(world.at(1)), "the neighbour below is faster"
    assert world.at(2)[0] == 8, "with room for it, the same micro-batch may be faster still"


def test_a_probe_runs_a_skipped_stage_once_and_may_find_it_faster() -> None:
    world = World(speed=lambda point: 100 * int(point["mbs"]) * (1.1 if point["stage"] == 1 else 1.0))
    found = search(world, strategy=ZeroProgressiveStrategy(probe=True))
    assert world.at(1) == [16] and world.at(2) == [16]
    findings = found.strategy.findings()
    assert findings is not None and findings.rows[1][2] == "1760 samples/s"


def test_latency_is_minimised() -> None:
    world = World(speed=lambda point: 1 / growing(point), edges={0: 8})
    found = search(world, space(stages=(0,)), direction=Direction.MINIMIZE)
    findings = found.strategy.findings()
    assert findings is not None and findings.rows[0][3] == "8"


def test_what_saves_memory_at_the_cost_of_time_comes_after_all_stages() -> None:
    world = World(edges={0: 0, 1: 0, 2: 0, 3: 0})
    search(world, space((1, 2), offload_optimizer=("none", "cpu"), checkpointing=(False, True)))
    order = [(run["stage"], run["checkpointing"], run["offload_optimizer"]) for run in world.runs]
    assert order[:4] == [(stage, False, "none") for stage in range(4)]
    assert order[4:8] == [(stage, True, "none") for stage in range(4)]
    assert order[8] == (1, False, "cpu"), "stage 0 has no optimizer states to offload by themselves"


def test_the_summary_has_one_row_per_stage() -> None:
    found = search(World(edges={0: 4, 1: 16}))
    findings = found.strategy.findings()
    assert findings is not None and findings.title == "ZeRO stages"
    assert [row[0] for row in findings.rows] == ["stage 0", "stage 1", "stage 2", "stage 3"]
    assert [int(row[1]) for row in findings.rows] == [len(found.world.at(stage)) for stage in range(4)]
    assert findings.rows[0][2:5] == ("666.7 samples/s", "4", "4")
    assert "faster" in str(found.strategy.why_done())


def test_where_nothing_runs_the_end_says_so() -> None:
    found = search(World(broken=(0, 1, 2, 3)))
    assert "micro-batch" in str(found.strategy.why_done()) and "faster" not in str(found.strategy.why_done())


def test_a_spent_budget_leaves_a_summary() -> None:
    strategy = ZeroProgressiveStrategy()
    with pytest.raises(TrialExhausted):
        search(World(budget=2, edges={0: 4}), strategy=strategy)
    findings = strategy.findings()
    assert findings is not None and findings.rows[0][1] == "2" and strategy.why_done() is None


def test_a_space_of_another_preset_is_refused_with_a_hint() -> None:
    with pytest.raises(UsageError, match=r"'stage'.*--preset deepspeed"):
        ZeroProgressiveStrategy().optimize(World(), {"mbs": IntParameter(1, 4)}, Direction.MAXIMIZE)
    with pytest.raises(UsageError, match=r"'mbs'.*CategoricalParameter"):
        ZeroProgressiveStrategy().max_trials({**space(), "mbs": IntParameter(1, 4)})
    with pytest.raises(UsageError, match=r"'mbs'.*whole numbers"):
        ZeroProgressiveStrategy().max_trials(space((0, 1)))


@pytest.mark.parametrize(
    "bad", [{"plateau": 1.0}, {"patience": 0}, {"inside_trials": 0}, {"inside": "best"}, {"seed": -1}]
)
def test_bad_arguments_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        ZeroProgressiveStrategy(**bad)  # type: ignore[arg-type]
