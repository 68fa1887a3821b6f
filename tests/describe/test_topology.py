from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.describe.smi_samples import DGX_1, islands, link_status, matrix, uniform
from tests.mentions import mentions
from zenith_tune.describe.topology import Path, cut_gpus, nvlink_status, parse_topology
from zenith_tune.errors import UsageError


def test_a_dgx_a100_is_one_island_of_eight() -> None:
    topology = parse_topology(matrix(uniform(8, "NV12"), nics=10))
    assert topology.islands == [list(range(8))]
    assert (topology.num_gpus, topology.fast_domain, topology.slowest_path) == (8, 8, Path.NVLINK)
    assert topology.nvlinks[0] == (0, 12, 12, 12, 12, 12, 12, 12)


def test_a_box_without_nvlink_has_no_island_but_a_slowest_path() -> None:
    topology = parse_topology(matrix(islands([2, 2], "PIX", "SYS")))
    assert topology.islands == [[0], [1], [2], [3]]
    assert (topology.fast_domain, topology.nvlinks_per_gpu(12), topology.slowest_path) == (1, 0, Path.SYS)


@pytest.mark.parametrize("link", ["PIX", "PXB", "PHB", "NODE", "SYS"])
def test_every_way_over_pcie_is_understood(link: str) -> None:
    assert parse_topology(matrix(uniform(2, link))).slowest_path is Path[link]


def test_the_old_name_of_the_way_between_sockets_is_understood() -> None:
    assert parse_topology(matrix(uniform(2, "SOC"))).slowest_path is Path.SYS


def test_two_islands_of_four_are_recognised() -> None:
    topology = parse_topology(matrix(islands([4, 4], "NV4", "SYS")))
    assert topology.islands == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert (topology.fast_domain, topology.nvlinks_per_gpu(12)) == (4, 12)


def test_pairs_behind_bridges_need_not_be_neighbours() -> None:
    cells = uniform(4, "SYS")
    cells[0][2] = cells[2][0] = cells[1][3] = cells[3][1] = "NV4"
    assert parse_topology(matrix(cells)).islands == [[0, 2], [1, 3]]


def test_a_lone_gpu_beside_an_island_leaves_no_fast_domain() -> None:
    topology = parse_topology(matrix(islands([2, 1], "NV4", "PHB")))
    assert (topology.islands, topology.fast_domain) == ([[0, 1], [2]], 1)


def test_a_mesh_without_a_switch_is_one_island_with_all_its_links() -> None:
    topology = parse_topology(matrix(DGX_1))
    assert (topology.fast_domain, topology.nvlinks_per_gpu(6), topology.slowest_path) == (8, 6, Path.SYS)


def test_a_switch_with_links_down_has_those_that_are_left() -> None:
    assert parse_topology(matrix(uniform(8, "NV18"))).nvlinks_per_gpu(18) == 18
    assert parse_topology(matrix(uniform(8, "NV16"))).nvlinks_per_gpu(18) == 16
    one_bad = uniform(8, "NV18")
    one_bad[0][1:] = ["NV12"] * 7
    for row in one_bad[1:]:
        row[0] = "NV12"
    assert parse_topology(matrix(one_bad)).nvlinks_per_gpu(18) == 12


def test_underlined_headers_and_windows_line_ends_change_nothing() -> None:
    plain = parse_topology(matrix(uniform(8, "NV18"), nics=4))
    assert parse_topology(matrix(uniform(8, "NV18"), nics=4, colours=True)) == plain
    assert parse_topology(matrix(uniform(8, "NV18"), nics=4).replace("\n", "\r\n")) == plain


def test_what_only_a_terminal_would_show_changes_nothing() -> None:
    text = matrix(uniform(4, "NV4"))
    drawn = "\x1b]0;a title\x07" + text.replace("GPU1", "\x1b[1;38;5;12mGPU1\x1b[K\x1b[0m")
    assert parse_topology(drawn) == parse_topology(text)


def test_one_gpu_is_a_machine_too() -> None:
    topology = parse_topology(matrix([[" X "]]))
    assert (topology.num_gpus, topology.fast_domain, topology.slowest_path) == (1, 1, Path.SELF)


@pytest.mark.parametrize(
    ("name", "active", "sizes"),
    [
        ("NVIDIA H100 80GB HBM3", [18] * 8, [8]),
        ("NVIDIA H100 80GB HBM3", [0] * 8, [1] * 8),
        ("NVIDIA A100 80GB PCIe", [12] * 4, [2, 2]),
        ("NVIDIA A100 80GB PCIe", [12, 12, 0, 0], [2, 1, 1]),
        ("Some GPU", [4] * 4, [4]),
    ],
)
def test_the_status_of_nvlinks_is_a_topology(name: str, active: list[int], sizes: list[int]) -> None:
    for text in (link_status(name, active), link_status(name, active).replace("\n", "\r\n")):
        topology = parse_topology(text)
        assert [len(island) for island in topology.islands] == sizes
        assert topology.nvlinks_per_gpu(max(active) or 1) == min(active)


def test_links_that_are_down_do_not_count() -> None:
    whole, status = matrix(uniform(8, "NV18")), link_status("NVIDIA H100 80GB HBM3", [18] * 7 + [16])
    assert {parse_topology(text).nvlinks_per_gpu(18) for text in (whole + status, status + whole)} == {16}
    lone = parse_topology(whole + link_status("NVIDIA H100 80GB HBM3", [18] * 7 + [0]))
    assert [len(island) for island in lone.islands] == [7, 1]


def test_a_status_of_other_gpus_than_the_matrix_is_refused() -> None:
    with pytest.raises(UsageError, match=r"8 GPUs.* 4"):
        parse_topology(matrix(uniform(8, "NV18")) + link_status("NVIDIA H100 80GB HBM3", [18] * 4))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ("GPU0",)),
        ("nonsense\n\x00\xff", ("GPU0",)),
        ("GPU0 GPU1 GPU2 mlx5_0\nGPU0 X NV4 NV4\nGPU1 NV4 X NV4", ("3 GPUs", 2)),
        ("GPU0 GPU0\nGPU0 X NV4\nGPU0 NV4 X", ("GPU0", "GPU1")),
        ("GPU1 GPU0\nGPU1 X NV4\nGPU0 NV4 X", ("GPU0", "GPU1")),
        ("GPU0 GPU2\nGPU0 X NV4\nGPU2 NV4 X", ("GPU0", "GPU1")),
        ("GPU0 GPU1\nGPU0 X nv4\nGPU1 nv4 X", ("'nv4'",)),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU0 NV4 X", ("2 GPUs", 2)),
        ("GPU0 GPU1\nGPU0 X NV4", ("2 GPUs", 1)),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4", ("GPU1", 2)),
        ("GPU0 GPU1\nGPU0 X WAT\nGPU1 WAT X", ("'WAT'",)),
        ("GPU0 GPU1\nGPU0 X NV0\nGPU1 NV0 X", ("'NV0'",)),
        ("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV2 X", ("GPU0", "GPU1")),
        ("GPU0 GPU1\nGPU0 X X\nGPU1 X X", ("diagonal",)),
        ("GPU0 GPU1\nGPU0 NV1 NV1\nGPU1 NV1 NV1", ("diagonal",)),
    ],
)
def test_a_broken_matrix_is_refused_in_one_line(text: str, named: tuple[object, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        parse_topology(text)
    assert mentions(caught.value.problem, *named) and "\n" not in str(caught.value)
    assert "nvidia-smi topo -m" in caught.value.hint


@given(st.lists(st.sampled_from(["GPU0", "GPU1", "X", "NV4", "NV", "SYS", "\n", "\t", "\x1b[4m", "NIC0", "é"])))
def test_any_text_is_read_or_refused(words: list[str]) -> None:
    try:
        assert parse_topology(" ".join(words)).num_gpus > 0
    except UsageError as error:
        assert "\n" not in str(error)


def test_a_matrix_of_links_has_islands() -> None:
    assert parse_topology("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X").islands == [[0, 1]]


def test_only_links_that_are_up_count() -> None:
    assert nvlink_status("GPU 0: A\n\t Link 0: 25 GB/s\n\t Link 1: <inactive>\nGPU 1: A\n\t Link 0: 25 GB/s") == [
        ("A", 1),
        ("A", 1),
    ]


def test_a_gpu_with_mig_instances_is_cut() -> None:
    assert cut_gpus("GPU 0: A\nGPU 1: A\n  MIG 3g.40gb     Device  0: (UUID: MIG-1)") == [1]
