from __future__ import annotations

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from zenith_tune.describe.topology import Topology, parse_topology
from zenith_tune.runners.local.room import gpu_sets

TOPOLOGIES = Path(__file__).parents[2] / "describe" / "topologies"


def read(name: str) -> Topology:
    return parse_topology((TOPOLOGIES / name).read_text())


def names(topology: Topology) -> list[str]:
    return [str(number) for number in range(topology.num_gpus)]


def test_pairs_joined_by_nvlink_stay_together() -> None:
    topology = read("rtx3090_crossed_pairs.txt")
    for pair in gpu_sets(names(topology), 2, topology):
        assert topology.nvlinks[int(pair[0])][int(pair[1])] > 0


def test_two_quads_make_two_sets_of_four() -> None:
    topology = read("a100_two_quads.txt")
    assert [sorted(map(int, each)) for each in gpu_sets(names(topology), 4, topology)] == topology.islands


def test_a_set_larger_than_an_island_takes_whole_islands() -> None:
    matrix = "GPU0 GPU1 GPU2 GPU3\nGPU0 X NV4 SYS SYS\nGPU1 NV4 X SYS SYS\nGPU2 SYS SYS X NV4\nGPU3 SYS SYS NV4 X"
    topology = parse_topology(matrix)
    assert gpu_sets(["4", "5", "6", "7"], 4, topology) == [("4", "5", "6", "7")]
    [three] = gpu_sets(["4", "5", "6", "7"], 3, topology)
    assert {"4", "5"} < set(three)


def test_what_islands_leave_over_is_still_used() -> None:
    matrix = "GPU0 GPU1 GPU2\nGPU0 X PIX SYS\nGPU1 PIX X SYS\nGPU2 SYS SYS X"
    assert gpu_sets(["0", "1", "2"], 2, parse_topology(matrix)) == [("0", "1")]


@given(st.integers(1, 16), st.integers(1, 16))
def test_sets_are_disjoint_and_as_many_as_there_can_be(num_gpus: int, num_per_set: int) -> None:
    gpus = [str(number) for number in range(num_gpus)]
    sets = gpu_sets(gpus, num_per_set)
    used = list(itertools.chain(*sets))
    assert len(sets) == num_gpus // num_per_set
    assert len(used) == len(set(used)) and set(used) <= set(gpus)
    assert all(len(each) == num_per_set for each in sets)


def test_every_real_machine_is_used_up() -> None:
    for path in sorted(TOPOLOGIES.glob("*.txt")):
        topology = parse_topology(path.read_text())
        for num in range(1, topology.num_gpus + 1):
            sets = gpu_sets(names(topology), num, topology)
            assert len(sets) == topology.num_gpus // num, path.name
            assert len(set(itertools.chain(*sets))) == num * len(sets)
