from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.describe.smi_samples import listed, matrix, uniform
from tests.mentions import mentions
from zenith_tune.describe.cluster_catalog import cluster_from_table, load_cluster, read_cluster
from zenith_tune.describe.cluster_spec import ClusterSpec, GpuSpec, LinkSpec
from zenith_tune.errors import UsageError
from zenith_tune.units import GIB

LINK = {"bytes_per_s": 1e9, "latency_s": 1e-5}
WHOLE: dict[str, Any] = {
    "name": "mine",
    "gpu": {"name": "chip", "memory_gib": 64, "bf16_flops": 4e14, "memory_bytes_per_s": 2e12},
    "num_gpus": 32,
    "gpus_per_node": 16,
    "fast_domain": 4,
    "fast_link": LINK,
    "node_link": LINK,
    "network": LINK,
}


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        read_cluster(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def table_refusal(table: dict[str, Any]) -> str:
    with pytest.raises(UsageError) as caught:
        cluster_from_table(table, "it", "it")
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 500
    return str(caught.value)


def test_a_cluster_of_the_catalogs_gpus_takes_what_it_does_not_say_from_their_usual_machine(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('gpu = "H100"\nnum_gpus = 64\nnetwork = { bytes_per_s = 25e9, latency_s = 2e-5 }\n')
    network = LinkSpec(bytes_per_s=25e9, latency_s=2e-5)
    assert read_cluster(path) == replace(load_cluster("h100x64"), name="mine", network=network)
    assert load_cluster(str(path)) == read_cluster(path)


def test_a_cluster_of_an_own_gpu_is_read_from_json_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(WHOLE), encoding="utf-8-sig")
    link = LinkSpec(bytes_per_s=1e9, latency_s=1e-5)
    assert read_cluster(tmp_path / "mine.json") == ClusterSpec(
        name="mine",
        gpu=GpuSpec(name="chip", memory_bytes=64 * GIB, bf16_flops=4e14, memory_bytes_per_s=2e12),
        num_gpus=32,
        gpus_per_node=16,
        fast_domain=4,
        fast_link=link,
        node_link=link,
        network=link,
    )


def test_a_saved_machine_is_read(tmp_path: Path) -> None:
    path = tmp_path / "box.txt"
    path.write_text(listed("NVIDIA A100-SXM4-40GB", 8) + matrix(uniform(8, "NV12"), nics=2, colours=True))
    assert read_cluster(path) == load_cluster("a100-40x8")


def test_every_missing_key_is_named_in_one_line() -> None:
    assert " gpu, num_gpus, gpus_per_node, fast_domain, fast_link, node_link, network" in table_refusal({})
    lacking = table_refusal({"gpu": "h100"})
    assert mentions(lacking, "num_gpus") and not mentions(lacking, "gpu")
    assert "memory_gib, bf16_flops, memory_bytes_per_s" in table_refusal({**WHOLE, "gpu": {"name": "chip"}})
    assert "latency_s" in table_refusal({**WHOLE, "network": {"bytes_per_s": 1e9}})


def test_unknown_keys_are_answered_with_a_guess() -> None:
    assert "'num_gpus'" in table_refusal({**WHOLE, "num_gpu": 8})
    assert "'memory_gib'" in table_refusal({**WHOLE, "gpu": {**WHOLE["gpu"], "memory_gb": 8}})
    assert "'latency_s'" in table_refusal({**WHOLE, "network": {**LINK, "latency": 1}})
    assert "'h100'" in table_refusal({**WHOLE, "gpu": "h10"})


@pytest.mark.parametrize("key", ["num_gpus", "gpus_per_node", "fast_domain"])
@pytest.mark.parametrize("value", [0, -8, 8.0, "8", True, 10**30, [8]])
def test_a_value_that_is_no_count_is_refused_with_its_key(key: str, value: object) -> None:
    assert f"it: {key} " in table_refusal({**WHOLE, key: value})


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf"), True, "fast", 10**400, []])
def test_a_value_that_is_no_rate_is_refused_with_its_key(value: object) -> None:
    message = table_refusal({**WHOLE, "network": {**LINK, "bytes_per_s": value}})
    assert "network.bytes_per_s" in message
    assert "memory_gib" in table_refusal({**WHOLE, "gpu": {**WHOLE["gpu"], "memory_gib": value}})


def test_numbers_that_cannot_be_of_one_cluster_are_refused() -> None:
    assert mentions(table_refusal({**WHOLE, "num_gpus": 24}), 24, 16, 32)
    assert mentions(table_refusal({**WHOLE, "fast_domain": 6}), 6, 16)


@pytest.mark.parametrize("key", ["gpu", "fast_link", "node_link", "network"])
def test_a_part_that_is_no_table_is_refused_with_its_key(key: str) -> None:
    assert f"it: {key} " in table_refusal({**WHOLE, key: 7})


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.toml", b"= nonsense", "TOML"),
        ("a.json", b"{", "JSON"),
        ("a.json", b"[" * 100_000, "JSON"),
        ("a.json", b"[]", "[]"),
        ("a.toml", b"\xff\xfe\x00", "UTF-8"),
        ("a.toml", b"#" * (2**20 + 1), "1 MiB"),
        ("a.toml", b"", " gpu, num_gpus"),
    ],
)
def test_a_file_that_is_no_cluster_is_refused(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert problem in refusal(tmp_path / name)


def test_a_pipe_or_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "folder.toml").mkdir()
    for name in ("pipe.toml", "folder.toml"):
        assert mentions(refusal(tmp_path / name), name, "regular")


@settings(suppress_health_check=[HealthCheck.too_slow])  # the first text is slow to draw on a busy machine
@given(
    st.dictionaries(
        st.sampled_from([*WHOLE, "other"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just(LINK) | st.just({}),
    )
)
def test_junk_gives_a_cluster_or_one_line(table: dict[str, Any]) -> None:
    try:
        assert cluster_from_table({**WHOLE, **table}, "it", "it").num_gpus > 0
    except UsageError as error:
        assert "\n" not in str(error)


def test_three_nodes_of_six_are_a_file_of_four_lines(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text('gpu = "a100-40"\nnum_gpus = 18\ngpus_per_node = 6\nfast_domain = 6\n')
    cluster = load_cluster(str(path))
    assert (cluster.num_nodes, cluster.gpus_per_node, cluster.fast_domain) == (3, 6, 6)
    assert cluster.network == load_cluster("a100-40x16").network
