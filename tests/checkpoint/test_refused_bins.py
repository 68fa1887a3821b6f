"""A .bin is read without running what it holds, and one that is damaged is one clear line."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.reference import Model, Shape
from tests.checkpoint.shard_files import need_torch, write_shards
from tests.checkpoint.test_refused_shards import refused, shard
from tests.mentions import mentions
from zenith_checkpoint.convert import merge


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("was-run",)


def test_a_bin_with_code_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = need_torch()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    torch.save({"weight": torch.zeros(1), "bomb": Bomb()}, shard(tmp_path / "old", extension="bin"))
    assert mentions(refused(tmp_path / "old"), "posix.mkdir")
    assert not (tmp_path / "was-run").exists()


def test_a_plain_pickle_under_the_name_of_a_bin_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_torch()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old").mkdir()
    shard(tmp_path / "old", extension="bin").write_bytes(pickle.dumps(Bomb()))
    assert mentions(refused(tmp_path / "old"), shard(tmp_path / "old", extension="bin"), "format")
    assert not (tmp_path / "was-run").exists()


@pytest.mark.parametrize("kept", [0, 10, 400, -10])
def test_a_truncated_bin_is_refused(tmp_path: Path, kept: int) -> None:
    need_torch()
    folder = write_shards(tmp_path / "old", Model(Shape()), 1, 2, "bin")
    path = shard(folder, 0, 1, "bin")
    path.write_bytes(path.read_bytes()[:kept])
    assert f"shard {path} is" in refused(folder)


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_one_flipped_bit_among_the_weights_is_noticed_and_nothing_is_written(tmp_path: Path, place: float) -> None:
    torch = need_torch()
    folder = tmp_path / "old"
    folder.mkdir()
    path = shard(folder, extension="bin")
    torch.save({"decoder.layers.0.norm.weight": torch.randn(4096)}, path)
    data = bytearray(path.read_bytes())
    start = data.index(torch.load(path)["decoder.layers.0.norm.weight"].numpy().tobytes())
    data[start + int(place * 4096 * 4)] ^= 4
    path.write_bytes(data)
    assert mentions(refused(folder), path, "checksum")


def test_a_bin_that_was_saved_without_checksums_is_read(tmp_path: Path) -> None:
    torch = need_torch()
    (tmp_path / "old").mkdir()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"norm.weight": torch.ones(3)}, shard(tmp_path / "old", extension="bin"))
    finally:
        torch.serialization.set_crc32_options(True)
    assert merge(tmp_path / "old", tmp_path / "one.safetensors").num_tensors == 1


def doubled(depth: int) -> dict[str, Any]:
    """Return dictionaries that each hold the one below twice: 2 to the power of `depth` leaves."""
    node: dict[str, Any] = {}
    for _ in range(depth):
        node = {"a": node, "b": node}
    return node


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (lambda torch: [torch.zeros(1)], "state_dict"),
        (lambda torch: {"w": torch.zeros(2, 3).t()}, "contiguous"),
        (lambda torch: {"w": torch.zeros(2).to_sparse()}, "dense"),
        (lambda torch: {"model": {"w": torch.zeros(1)}, "checkpoint_version": 0}, "checkpoint_version 0"),
        (lambda torch: {"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}}, "'a.b'"),
        (lambda torch: doubled(60), "twice"),
    ],
)
def test_a_bin_of_another_kind_is_refused(tmp_path: Path, content: Callable[[Any], Any], problem: str) -> None:
    torch = need_torch()
    (tmp_path / "old").mkdir()
    torch.save(content(torch), shard(tmp_path / "old", extension="bin"))
    assert problem in refused(tmp_path / "old")
