"""Machines that their owners reported, and one that was asked: islands and limits that were worked out by hand."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlparse

import pytest

from tests.describe.smi_samples import Machine, reported_machines, reported_matrix
from tests.mentions import mentions
from zenith_tune.describe.cluster_catalog import load_cluster, read_cluster
from zenith_tune.describe.machine import machine_cluster
from zenith_tune.describe.topology import cut_gpus, parse_topology, read_topology, tensor_reason, with_topology
from zenith_tune.errors import UsageError

MACHINES = reported_machines()
every_machine = pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
known_gpus = pytest.mark.parametrize(
    "machine",
    [machine for machine in MACHINES.values() if "gpu" in machine],
    ids=[name for name, machine in MACHINES.items() if "gpu" in machine],
)


@every_machine
def test_islands_and_the_limit_are_those_worked_out_by_hand(machine: Machine) -> None:
    topology = parse_topology(reported_matrix(machine))
    assert topology.islands == machine["islands"]
    assert (topology.fast_domain, topology.slowest_path.name) == (machine["tensor_parallel"], machine["slowest"])


@known_gpus
def test_a_cluster_of_such_nodes_has_their_limit_and_the_rate_of_their_links(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "node.txt"
    path.write_text(reported_matrix(machine), encoding="utf-8")
    topology = read_topology(path)
    usual = replace(load_cluster(f"{machine['gpu']}x8"), num_gpus=2 * machine["num_gpus"])
    cluster = with_topology(usual, topology, path.name)
    assert (cluster.gpus_per_node, cluster.fast_link.bytes_per_s) == (machine["num_gpus"], machine["fast_bytes_per_s"])
    is_rack = machine["gpu"] == "gb200"
    assert cluster.fast_domain == (usual.fast_domain if is_rack else machine["tensor_parallel"])
    assert mentions(tensor_reason(cluster, topology), "tensor")


@every_machine
def test_what_is_written_is_a_matrix_as_the_tool_prints_it(machine: Machine) -> None:
    _, _, text = reported_matrix(machine).rpartition("UUID")  # behind the list, where there is one
    lines = [line.split() for line in text.splitlines() if re.match(r"\s*(GPU|NIC|mlx5_)\d+\s+\S", line)]
    names = [words[0] for words in lines[1:]]
    titles = lines[0][: len(names)]
    assert titles == names == [*(f"GPU{i}" for i in range(machine["num_gpus"])), *(c["name"] for c in machine["cards"])]
    cells = [words[1 : len(names) + 1] for words in lines[1:]]
    assert all(cells[a][b] == cells[b][a] for a in range(len(names)) for b in range(len(names)))
    assert all((cells[a][b] == "X") == (a == b) for a in range(len(names)) for b in range(len(names)))


def test_cards_and_cores_differ_by_machine_as_reported() -> None:
    rows = {name: reported_matrix(machine).splitlines() for name, machine in MACHINES.items()}
    assert rows["h100_cards_in_reverse"][8].split()[-12:] == [
        *["SYS", "PIX", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"],
        "80-159",
        "1",
        "N/A",
    ]
    assert rows["dgx1_v100"][9] == "mlx5_0\tPIX\tPIX\tPHB\tPHB\tSYS\tSYS\tSYS\tSYS\t X \tSYS\tPHB\tSYS\t"
    assert rows["two_of_eight_a100"][4].split("\t")[3:] == ["PIX", " X ", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert [row.split()[-1] for row in rows["gb200_tray"][1:5]] == ["2", "10", "18", "26"]
    ways = {way for machine in MACHINES.values() for card in machine["cards"] for way in card}
    assert {"PIX", "PXB", "PHB", "NODE"} <= ways
    assert len({socket.get("cpus") for machine in MACHINES.values() for socket in machine.get("sockets", ())}) > 12


def test_the_reports_are_of_many_kinds_of_machines_and_say_where_they_are_from() -> None:
    assert len(MACHINES) >= 12
    assert all(urlparse(machine["source"]).scheme == "https" for machine in MACHINES.values())
    kinds = {(machine["tensor_parallel"], machine["slowest"]) for machine in MACHINES.values()}
    assert {(1, "SYS"), (2, "NVLINK"), (4, "NVLINK"), (8, "NVLINK"), (8, "SYS"), (1, "NODE")} <= kinds


def test_a_reported_gpu_in_instances_is_no_whole_one() -> None:
    text = reported_matrix(MACHINES["a100_in_seven"])
    assert cut_gpus(text) == [0]
    with pytest.raises(UsageError, match=r"GPU 0 .*MIG"):
        machine_cluster(text, "pod.txt")


def test_a_machine_that_was_asked_is_read_as_it_answered() -> None:
    path = Path(__file__).parent / "topologies" / "h200_single.txt"
    assert read_topology(path).islands == [[0]]
    cluster = read_cluster(path)
    assert (cluster.name, cluster.num_gpus, cluster.fast_domain) == ("h200x1", 1, 1)
