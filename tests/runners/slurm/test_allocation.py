from __future__ import annotations

from dataclasses import replace

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.runners.local.room import SlotPool
from zenith_tune.runners.slurm.request import NodeRoom, SlurmRequest
from zenith_tune.runners.slurm.step import SlurmAllocation
from zenith_tune.study.resources import Resources

ROOM = NodeRoom(num_cpus=32, num_gpus=8, memory_mb=64_000)
ALLOCATION = SlurmAllocation(job_id="9", nodes=("n1", "n2"), room=ROOM)
ONE_GPU = Resources(gpus_per_node=1)


def test_the_memory_of_a_step_counts_for_how_many_fit() -> None:
    assert ALLOCATION.num_slots(SlurmRequest(), ONE_GPU) == 16
    assert ALLOCATION.num_slots(SlurmRequest(mem="20G"), ONE_GPU) == 6
    options = ALLOCATION.step_options(SlurmRequest(), Resources(gpus_per_node=4), None)
    assert (options["mem"], options["cpus-per-task"]) == ("32000M", 16)


def test_memory_that_slurm_does_not_share_out_limits_nothing() -> None:
    unshared = SlurmAllocation(job_id="9", nodes=("n1",), room=replace(ROOM, memory_mb=0))
    assert unshared.num_slots(SlurmRequest(mem="500G"), ONE_GPU) == 8


def test_more_memory_than_a_node_has_is_refused() -> None:
    with pytest.raises(UsageError, match=r"80G .*job 9 .* 64000 MB") as refused:
        ALLOCATION.num_slots(SlurmRequest(mem="80G"), ONE_GPU)
    assert "steps=false" in refused.value.hint


def test_slots_are_disjoint_and_a_failed_node_is_taken_last() -> None:
    pool = SlotPool(ALLOCATION.slots(SlurmRequest(), Resources(gpus_per_node=4)))
    taken = [pool.take(lambda slot: "n1" not in slot.nodes) for _ in range(4)]
    assert [slot.nodes for slot in taken] == [("n2",), ("n2",), ("n1",), ("n1",)]
    assert len({(slot.nodes, slot.first_gpu) for slot in taken}) == 4
    pool.give_back(taken[0])
    assert pool.take() == taken[0]
    spread = SlurmAllocation(job_id="9", nodes=("n1", "n2", "n3"), room=ROOM)
    assert [slot.first_gpu for slot in spread.slots(SlurmRequest(), Resources(nodes=2, gpus_per_node=4))] == [0, 4]
