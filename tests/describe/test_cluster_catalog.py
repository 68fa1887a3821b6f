from __future__ import annotations

from pathlib import Path

import pytest

from tests.mentions import mentions
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.errors import UnknownNameError, UsageError


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        load_cluster(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("spelling", "gpu", "num_gpus"),
    [
        ("h100x64", "h100", 64),
        ("64xH100", "h100", 64),
        ("64 x H100", "h100", 64),
        ("H100*64", "h100", 64),
        ("h100:64", "h100", 64),
        ("64 h100", "h100", 64),
        ("h100×64", "h100", 64),
        (" 8xH200 ", "h200", 8),
        ("a100-40x16", "a100-40", 16),
        ("16xA100-40", "a100-40", 16),
        ("a100x8", "a100-80", 8),
        ("v100x8", "v100-32", 8),
        ("gb200x72", "gb200", 72),
        ("mi300xx8", "mi300x", 8),
        ("mi300x8", "mi300x", 8),
        ("8xMI300X", "mi300x", 8),
        ("4090x2", "rtx-4090", 2),
        ("2x4090", "rtx-4090", 2),
    ],
)
def test_a_cluster_is_spelled_by_its_gpu_and_count(spelling: str, gpu: str, num_gpus: int) -> None:
    cluster = load_cluster(spelling)
    assert (cluster.gpu.name, cluster.num_gpus, cluster.name) == (gpu, num_gpus, f"{gpu}x{num_gpus}")


def test_a_cluster_has_the_nodes_and_links_of_its_gpus_usual_machine() -> None:
    cluster = load_cluster("h100x64")
    assert (cluster.gpus_per_node, cluster.num_nodes, cluster.fast_domain) == (8, 8, 8)
    assert (cluster.fast_link.bytes_per_s, cluster.network.bytes_per_s) == (450e9, 50e9)


@pytest.mark.parametrize(("num_gpus", "domain"), [(4, 72), (16, 72), (72, 72), (144, 72), (128, 64), (256, 64)])
def test_a_rack_of_gb200_is_one_domain_and_larger_jobs_are_spread_evenly(num_gpus: int, domain: int) -> None:
    cluster = load_cluster(f"gb200x{num_gpus}")
    assert (cluster.gpus_per_node, cluster.fast_domain) == (4, domain)


@pytest.mark.parametrize("num_gpus", [1, 2, 3, 4, 7])
def test_a_part_of_a_node_is_a_cluster(num_gpus: int) -> None:
    cluster = load_cluster(f"h100x{num_gpus}")
    assert (cluster.num_gpus, cluster.gpus_per_node, cluster.num_nodes) == (num_gpus, 8, 1)


def test_a_count_that_does_not_fill_its_nodes_is_refused_with_the_nearest() -> None:
    assert mentions(refusal("h100x12"), 12, 8, 16)
    assert mentions(refusal("gb200x70"), 70, 68, 72)
    assert mentions(refusal("h100x0"), 1, 8)


def test_a_gpu_without_a_count_is_refused_with_the_way_to_write_it() -> None:
    assert "h100x8" in refusal("H100")


@pytest.mark.parametrize(("spelling", "guess"), [("h10x8", "h100"), ("8xgb20", "gb200"), ("8xmi300z", "mi300x")])
def test_an_unknown_gpu_is_answered_with_a_guess(spelling: str, guess: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"'{guess}'.* a10, a100-40, "):
        load_cluster(spelling)


@pytest.mark.parametrize("text", ["", " ", "x", "cluster", "h100x", "x8", "h100x-8", "h100x99999999", "８xh100", "\n"])
def test_a_text_that_spells_no_cluster_is_refused_with_the_known_gpus(text: str) -> None:
    message = refusal(text)
    assert "h100x64" in message and "'local'" in message


@pytest.mark.parametrize("text", ["./nothing", "/no/such/file", "nothing.toml", "~/nothing.json"])
def test_a_path_where_nothing_is_is_refused(text: str) -> None:
    assert "No such file or directory" in refusal(text)


@pytest.mark.parametrize("text", ["x" * 5000, "~no-such-user/file", "a\0b/c"])
def test_a_path_that_the_system_refuses_is_named_in_one_line(text: str) -> None:
    assert "cluster " in refusal(text)


def test_a_file_of_any_name_is_read_but_does_not_hide_a_spelling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("box", "h100x8"):
        (tmp_path / name).write_text('gpu = "a100"\nnum_gpus = 16\n')
    assert load_cluster("box").num_gpus == 16
    assert load_cluster("h100x8").gpu.name == "h100"
