from __future__ import annotations

import pytest

from tests.describe.smi_samples import DGX_1, islands, link_status, listed, matrix, uniform
from tests.mentions import mentions
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.machine import is_machine, listed_gpus, machine_cluster
from zenith_tune.errors import UsageError

H100 = "NVIDIA H100 80GB HBM3"
A100 = "NVIDIA A100-SXM4-80GB"


def machine(name: str, cells: list[list[str]], nics: int = 0) -> ClusterSpec:
    return machine_cluster(listed(name, len(cells)) + matrix(cells, nics=nics), "box.txt")


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        machine_cluster(text, "box.txt")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "link", "spelled"),
    [
        (H100, "NV18", "h100x8"),
        (A100, "NV12", "a100x8"),
        ("NVIDIA B200", "NV18", "b200x8"),
        ("NVIDIA A800", "NV8", "a800x8"),
    ],
)
def test_a_usual_machine_is_the_one_of_the_catalog(name: str, link: str, spelled: str) -> None:
    assert machine(name, uniform(8, link), nics=8) == load_cluster(spelled)


def test_a_machine_without_nvlink_has_no_fast_domain_and_the_links_of_pcie() -> None:
    cluster = machine(A100, uniform(4, "PHB"))
    assert (cluster.num_gpus, cluster.gpus_per_node, cluster.fast_domain) == (4, 4, 1)
    assert cluster.fast_link == cluster.node_link


def test_two_islands_have_the_rate_of_their_own_links() -> None:
    cluster = machine(A100, islands([4, 4], "NV4", "SYS"))
    assert (cluster.num_gpus, cluster.fast_domain, cluster.fast_link.bytes_per_s) == (8, 4, 300e9)
    cluster = machine(A100, islands([2, 2], "NV4", "SYS"))
    assert (cluster.fast_domain, cluster.fast_link.bytes_per_s) == (2, 100e9)


def test_a_mesh_of_six_links_has_the_rate_of_six() -> None:
    cluster = machine("Tesla V100-SXM2-16GB", DGX_1)
    assert (cluster.gpu.name, cluster.fast_domain, cluster.fast_link.bytes_per_s) == ("v100-16", 8, 150e9)


def test_a_switch_with_links_down_has_the_rate_of_those_that_are_left() -> None:
    cluster = machine(H100, uniform(8, "NV16"))
    assert (cluster.name, cluster.fast_domain, cluster.fast_link.bytes_per_s) == ("h100x8 as box.txt", 8, 400e9)


def test_one_gpu_needs_no_matrix() -> None:
    cluster = machine_cluster(listed("NVIDIA H200", 1), "box.txt")
    assert (cluster.name, cluster.num_gpus, cluster.fast_domain) == ("h200x1", 1, 1)


def test_names_are_listed_without_their_ids() -> None:
    assert listed_gpus(listed(H100, 2)) == [H100, H100]
    assert listed_gpus(f"GPU 0: {H100} \r\n  MIG 1g.10gb Device 0: (UUID: MIG-1)\nNo devices") == [H100]


def test_what_nvidia_smi_prints_is_recognised_among_other_text() -> None:
    assert is_machine(listed(H100, 1)) and is_machine(matrix(uniform(2, "SYS"), colours=True))
    assert not is_machine('gpu = "h100"\nnum_gpus = 8\n# GPU0 is broken')


@pytest.mark.parametrize("before", ["", listed(H100, 8), listed(H100, 8) + matrix(uniform(8, "NV18"))])
def test_the_status_of_nvlinks_describes_a_machine(before: str) -> None:
    cluster = machine_cluster(before + link_status(H100, [16] * 8), "box.txt")
    assert (cluster.num_gpus, cluster.fast_domain, cluster.fast_link.bytes_per_s) == (8, 8, 400e9)
    assert machine_cluster(before + link_status(H100, [0] * 8), "box.txt").fast_domain == 1


def test_a_matrix_without_names_says_how_to_save_them() -> None:
    assert "(nvidia-smi -L; nvidia-smi topo -m) > FILE" in refusal(matrix(uniform(2, "NV4")))


def test_a_matrix_of_another_machine_is_refused() -> None:
    message = refusal(listed(H100, 4) + matrix(uniform(8, "NV18")))
    assert mentions(message, "4 GPUs", 8)


def test_a_matrix_that_cannot_be_read_is_reported_with_its_file() -> None:
    cut = listed(H100, 4) + matrix(uniform(4, "NV18")).partition("GPU3\tNV18")[0]
    assert refusal(cut).startswith("box.txt: ") and mentions(refusal(cut), "4 GPUs", 3)
    assert refusal(listed(H100, 2)).startswith("box.txt: ") and "GPU0" in refusal(listed(H100, 2))


def test_gpus_of_two_kinds_are_refused() -> None:
    assert f"'{A100}' and '{H100}'" in refusal(listed(H100, 1) + listed(A100, 1))


def test_an_unknown_gpu_is_refused_with_the_known_ones() -> None:
    message = refusal(listed("Voodoo 2", 1))
    assert "(a10, a100-40, " in message and "'Voodoo 2'" in message and "TOML" in message
