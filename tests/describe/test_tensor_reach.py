from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mentions import mentions
from zenith_tune.describe.cluster_catalog import load_cluster, read_cluster
from zenith_tune.describe.topology import Path as Way
from zenith_tune.describe.topology import read_topology, tensor_reason, with_topology
from zenith_tune.errors import UsageError
from zenith_tune.planner.what_if import resized

TOPOLOGIES = Path(__file__).parent / "topologies"
PAIRS, QUADS = [[0, 1], [2, 3]], [[0, 1, 2, 3], [4, 5, 6, 7]]
LONE_8 = [[gpu] for gpu in range(8)]

MACHINES = [
    ("dgx1_v100_mesh", [list(range(8))], 8, Way.SYS),
    ("dgx2_v100_switch", [list(range(16))], 16, Way.NVLINK),
    ("a100_pcie_pairs", PAIRS, 2, Way.SYS),
    ("rtx3090_crossed_pairs", [[0, 2], [1, 3]], 2, Way.PHB),
    ("a100_two_quads", QUADS, 4, Way.SYS),
    ("h100_nvswitch", [list(range(8))], 8, Way.NVLINK),
    ("l40s_pcie", LONE_8, 1, Way.SYS),
    ("rtx4090_two_sockets", [[0], [1], [2], [3]], 1, Way.SYS),
    ("a40_nvlink_and_pix", [*PAIRS, [4], [5]], 1, Way.SYS),
    ("a100_mig", [[0], [1], [2], [3]], 1, Way.SYS),
    ("b200_one_mig", [[0, 1, 3, 4, 5, 6, 7], [2]], 1, Way.SYS),
    ("h200_single", [[0]], 1, Way.SELF),
    ("gb200_tray", [[0, 1, 2, 3]], 4, Way.NVLINK),
]


def file(name: str) -> Path:
    return TOPOLOGIES / f"{name}.txt"


@pytest.mark.parametrize(("name", "islands", "size", "slowest"), MACHINES, ids=[name for name, *_ in MACHINES])
def test_islands_and_the_size_of_tensor_parallel_groups(
    name: str, islands: list[list[int]], size: int, slowest: Way
) -> None:
    topology = read_topology(file(name))
    assert (topology.islands, topology.fast_domain, topology.slowest_path) == (islands, size, slowest)


def test_every_machine_that_is_kept_is_tested() -> None:
    assert {path.stem for path in TOPOLOGIES.glob("*.txt")} == {name for name, *_ in MACHINES}


@pytest.mark.parametrize(
    ("name", "gpu", "num_gpus", "fast_domain", "fast_bytes_per_s"),
    [
        ("dgx1_v100_mesh", "v100-32", 8, 8, 150e9),
        ("dgx2_v100_switch", "v100-32", 16, 16, 150e9),
        ("a100_pcie_pairs", "a100-pcie", 4, 2, 300e9),
        ("rtx3090_crossed_pairs", "rtx-3090", 4, 2, 56e9),
        ("a100_two_quads", "a100-40", 8, 4, 300e9),
        ("h100_nvswitch", "h100", 8, 8, 450e9),
        ("l40s_pcie", "l40s", 8, 1, 25e9),
        ("a40_nvlink_and_pix", "a40", 6, 1, 25e9),
        ("h200_single", "h200", 1, 1, 50e9),
        ("gb200_tray", "gb200", 4, 72, 900e9),
    ],
)
def test_a_saved_machine_is_a_cluster(
    name: str, gpu: str, num_gpus: int, fast_domain: int, fast_bytes_per_s: float
) -> None:
    cluster = read_cluster(file(name))
    assert (cluster.gpu.name, cluster.num_gpus, cluster.fast_domain) == (gpu, num_gpus, fast_domain)
    assert cluster.fast_link.bytes_per_s == fast_bytes_per_s


@pytest.mark.parametrize(("name", "gpu"), [("a100_mig", 0), ("b200_one_mig", 2)])
def test_a_gpu_that_is_cut_into_instances_is_no_whole_one(name: str, gpu: int) -> None:
    with pytest.raises(UsageError, match=f"GPU {gpu} .*MIG") as caught:
        read_cluster(file(name))
    assert "\n" not in str(caught.value) and f"nvidia-smi -i {gpu} -mig 0" in str(caught.value)


def test_more_of_a_machine_keep_its_links() -> None:
    more = resized(read_cluster(file("a100_pcie_pairs")), 16)
    assert (more.num_gpus, more.gpus_per_node, more.fast_domain) == (16, 4, 2)
    assert resized(read_cluster(file("h100_nvswitch")), 64) == load_cluster("h100x64")
    assert resized(read_cluster(file("gb200_tray")), 72).fast_domain == 72


def test_a_cluster_takes_the_links_of_a_saved_node() -> None:
    cluster = with_topology(load_cluster("a100x16"), read_topology(file("a100_two_quads")), "quads")
    assert (cluster.num_gpus, cluster.gpus_per_node, cluster.fast_domain) == (16, 8, 4)
    assert cluster.name == "a100-80x16 as quads" and cluster.network == load_cluster("a100x16").network
    slow = with_topology(load_cluster("h100x8"), read_topology(file("l40s_pcie")), "pcie")
    assert slow.fast_domain == 1 and slow.fast_link == slow.node_link
    rack = with_topology(load_cluster("gb200x72"), read_topology(file("gb200_tray")), "tray")
    assert (rack.gpus_per_node, rack.fast_domain) == (4, 72)


def test_a_gpu_that_the_catalog_does_not_know_keeps_the_rate_of_its_own_cluster() -> None:
    usual = load_cluster("a100x8")
    mine = replace(usual, gpu=replace(usual.gpu, name="mine"))
    cluster = with_topology(mine, read_topology(file("a100_two_quads")), "quads")
    assert (cluster.fast_domain, cluster.fast_link.bytes_per_s) == (4, usual.fast_link.bytes_per_s)


def test_a_job_of_fewer_gpus_has_the_first_ones_of_the_node() -> None:
    cluster = with_topology(load_cluster("a100x2"), read_topology(file("a100_pcie_pairs")), "pairs")
    assert (cluster.num_gpus, cluster.gpus_per_node, cluster.fast_domain) == (2, 2, 2)
    crossed = with_topology(load_cluster("a100x2"), read_topology(file("rtx3090_crossed_pairs")), "crossed")
    assert crossed.fast_domain == 1


def test_gpus_that_fill_no_nodes_of_that_kind_are_refused() -> None:
    with pytest.raises(UsageError, match=r"\b16\b.*\b12\b"):
        with_topology(load_cluster("a100x16"), read_topology(file("a40_nvlink_and_pix")), "a40")


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("h100_nvswitch", "8 GPUs"),
        ("a100_pcie_pairs", "2 GPUs (0 1 | 2 3)"),
        ("rtx3090_crossed_pairs", "CUDA_VISIBLE_DEVICES=0,2,1,3"),
        ("l40s_pcie", "SYS"),
        ("rtx4090_two_sockets", "avoided"),
        ("a40_nvlink_and_pix", "(0 1 | 2 3 | 4 | 5)"),
        ("a100_mig", "SYS"),
        ("h200_single", "one GPU"),
    ],
)
def test_the_reason_is_one_line(name: str, shown: str) -> None:
    topology = read_topology(file(name))
    cluster = with_topology(replace(load_cluster("h100x8"), num_gpus=topology.num_gpus), topology, name)
    reason = tensor_reason(cluster, topology)
    assert shown in reason and "\n" not in reason


def test_the_reason_of_a_named_cluster_needs_no_matrix() -> None:
    assert "one GPU" in tensor_reason(load_cluster("h200x1"))
    assert mentions(tensor_reason(load_cluster("gb200x72")), "72 GPUs")
    assert mentions(tensor_reason(load_cluster("l40sx8")), "no NVLink")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", "GPU0"),
        (b"\xff\xfe\x00", "GPU0"),
        (b"#" * (2**20 + 1), "1 MiB"),
        (None, "No such file or directory"),
    ],
)
def test_a_file_that_is_no_matrix_is_refused_in_one_line(tmp_path: Path, content: bytes | None, shown: str) -> None:
    path = tmp_path / "box.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_topology(path)
    assert "box.txt" in str(caught.value) and shown in str(caught.value) and "\n" not in str(caught.value)
