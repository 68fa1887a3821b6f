"""A checkpoint that is not whole, or not of one piece, is one clear line, and nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.reference import Model, Shape, Weights
from tests.checkpoint.shard_files import need_torch, write_bin, write_safetensors, write_shards
from tests.mentions import mentions
from zenith_checkpoint.convert import Target, merge, reshard
from zenith_checkpoint.model_shape import ModelShape
from zenith_tune.errors import UsageError


def shard(folder: Path, tp: int = 0, pp: int = 0, extension: str = "safetensors") -> Path:
    return folder / f"pytorch_model_tp_{tp}_pp_{pp}.{extension}"


def change(folder: Path, model: Model, edit: Callable[[Weights], object], tp: int = 1, pp: int = 0) -> None:
    weights = model.shard(tp, 2, pp, 2)
    edit(weights)
    write_safetensors(shard(folder, tp, pp), weights, model.shape.dtype)


def refused(folder: Path, shape: ModelShape | None = None) -> str:
    """Return why both commands refuse a folder; neither may leave anything behind."""
    output, before = folder.parent / "one.safetensors", sorted(folder.parent.rglob("*"))
    with pytest.raises(UsageError) as first:
        merge(folder, output, shape, vocab_divisor=2)
    with pytest.raises(UsageError) as second:
        reshard(folder, folder.parent / "new", Target(tp=1, pp=1, vocab_divisor=2), shape)
    assert sorted(folder.parent.rglob("*")) == before
    assert str(first.value) == str(second.value) and "\n" not in str(first.value)
    return str(first.value)


@pytest.fixture
def model() -> Model:
    return Model(Shape(bias=True, tied=True))


@pytest.fixture
def folder(tmp_path: Path, model: Model) -> Path:
    return write_shards(tmp_path / "old", model, 2, 2)


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard(folder, 1, 0).unlink()
    reason = refused(folder)
    assert mentions(reason, "2 x 2 = 4", "pytorch_model_tp_1_pp_0.safetensors")


def test_a_whole_stage_that_is_missing_is_found_by_the_number_of_layers(folder: Path) -> None:
    for rank in range(2):
        shard(folder, rank, 1).unlink()
    assert mentions(refused(folder, ModelShape(num_layers=4)), "4 layers", 2)


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("pytorch_model_tp_2_pp_0.safetensors", ("3 x 2 = 6", 5)),
        ("pytorch_model_tp_999999999_pp_0.safetensors", ("TP x PP", 5)),
        ("pytorch_model_tp_0_pp_0_ep_1.bin", ("pytorch_model_tp_0_pp_0_ep_1.bin", "name")),
        ("pytorch_model_tp_00_pp_0.safetensors", ("pytorch_model_tp_00_pp_0.safetensors", "name")),
        ("pytorch_model_tp_0_pp_0.bin", ("pytorch_model_tp_0_pp_0.bin", "pytorch_model_tp_0_pp_0.safetensors")),
    ],
)
def test_an_extra_shard_is_refused(folder: Path, name: str, named: tuple[object, ...]) -> None:
    (folder / name).write_bytes(shard(folder).read_bytes())
    assert mentions(refused(folder), *named)


def test_other_files_beside_the_shards_are_left_alone(folder: Path, tmp_path: Path) -> None:
    (folder / "optimizer_tp_0_pp_0.bin").write_bytes(b"not looked at")
    merge(folder, tmp_path / "one.safetensors")
    assert (tmp_path / "one.safetensors").is_file()


def test_an_empty_folder_and_no_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    assert mentions(refused(tmp_path / "old"), tmp_path / "old", "no checkpoint")
    assert mentions(refused(tmp_path / "nowhere"), tmp_path / "nowhere", "no folder")


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_truncated_shard_is_refused(folder: Path, kept: int) -> None:
    path = shard(folder, 1, 1)
    path.write_bytes(path.read_bytes()[:kept])
    assert mentions(refused(folder), path)


def test_bytes_behind_the_last_tensor_are_refused(folder: Path) -> None:
    path = shard(folder, 1, 1)
    path.write_bytes(path.read_bytes() + b"x")
    assert mentions(refused(folder), path)


@pytest.mark.parametrize(
    "header",
    [
        "[]",
        "{",
        "[" * 100_000,
        '{"a": 1}',
        '{"a": {"dtype": "F4", "shape": [1], "data_offsets": [0, 1]}}',
        '{"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 1]}}',
        '{"a": {"dtype": "U8", "shape": [true], "data_offsets": [0, 1]}}',
        '{"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 1]}}',
        '{"a": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}}',
        '{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": {}}',
        '{"__metadata__": {"a": 1}}',
        "{}",
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "old").mkdir()
    body = b"" if header == "{}" else b"xx"
    shard(tmp_path / "old").write_bytes(len(header).to_bytes(8, "little") + header.encode() + body)
    assert mentions(refused(tmp_path / "old"), shard(tmp_path / "old"))


def test_a_header_of_absurd_length_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with shard(tmp_path / "old").open("wb") as file:
        file.write((2**31).to_bytes(8, "little"))
        file.truncate(2**32)
    assert mentions(refused(tmp_path / "old"), shard(tmp_path / "old"))


def test_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    shard(folder, 1, 1).unlink()
    os.mkfifo(shard(folder, 1, 1))
    assert mentions(refused(folder), shard(folder, 1, 1))


NORM, UP = "decoder.layers.0.pre_mlp_layernorm.weight", "decoder.layers.1.mlp.linear_fc1.weight"
FIRST, SECOND = (f"pytorch_model_tp_{rank}_pp_0.safetensors" for rank in range(2))
ROW_BIAS = "decoder.layers.0.self_attention.linear_proj.bias"


def other(array: Any) -> Any:
    """Return the array with one bit changed in its last element."""
    changed = array.copy()
    changed.reshape(-1)[-1] ^= 1
    return changed


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (lambda w: w.update({UP: w[UP][:-2]}), (repr(UP), f"BF16 [8, 8] in {FIRST}", SECOND)),
        (lambda w: w.pop(NORM), (repr(NORM), f"is in {FIRST}", f"not in {SECOND}")),
        (lambda w: w.update(new=w[NORM]), ("'new'", f"is in {SECOND}", f"not in {FIRST}")),
        (lambda w: w.update({NORM: other(w[NORM])}), (repr(NORM), "same")),
        (lambda w: w.update({ROW_BIAS: other(w[ROW_BIAS])}), (repr(ROW_BIAS), "same")),
    ],
)
def test_a_shard_that_does_not_go_with_the_others_is_refused(
    folder: Path, model: Model, edit: Callable[[Weights], object], named: tuple[str, ...]
) -> None:
    change(folder, model, edit)
    assert mentions(refused(folder), *named)


def test_another_element_type_on_one_rank_is_refused(folder: Path, model: Model) -> None:
    write_safetensors(shard(folder, 1, 0), model.shard(1, 2, 0, 2), "F16")
    assert mentions(refused(folder), f"BF16 [6, 8] in {FIRST}", "F16 [6, 8]")


def test_an_unknown_weight_that_differs_is_refused_and_one_that_does_not_is_kept(folder: Path, model: Model) -> None:
    adapters = [f"decoder.layers.{number}.adapter.weight" for number in range(2)]
    for rank, stage in product(range(2), range(2)):
        change(folder, model, lambda w: w.update(dict.fromkeys(adapters, w[NORM])), rank, stage)
    written = merge(folder, folder.parent / "ok.safetensors")
    assert written.num_tensors == len(model.whole()) + 4
    change(folder, model, lambda w: w.update(dict.fromkeys(adapters, other(w[NORM]))), 1)
    assert mentions(refused(folder), repr(adapters[0]), "same")


def test_a_shard_that_was_copied_under_another_name_is_refused(folder: Path) -> None:
    for stage in range(2):
        shard(folder, 1, stage).write_bytes(shard(folder, 0, stage).read_bytes())
    assert mentions(refused(folder), "2 tensor ranks")


def test_stages_that_changed_places_are_refused(folder: Path) -> None:
    for rank in range(2):
        first, second = shard(folder, rank, 0), shard(folder, rank, 1)
        one, two = first.read_bytes(), second.read_bytes()
        first.write_bytes(two)
        second.write_bytes(one)
    assert mentions(refused(folder), "'decoder.final_layernorm.weight'", "last stage")


def test_a_tied_output_layer_that_differs_from_the_embedding_is_refused_or_taken_for_its_own(
    folder: Path, model: Model
) -> None:
    def edit(weights: Weights) -> None:
        weights["output_layer.weight"] = other(weights["output_layer.weight"])

    change(folder, model, edit, pp=1)
    reason = refused(folder, ModelShape(tied=True))
    assert mentions(reason, "'output_layer.weight'", "'embedding.word_embeddings.weight'", "same")
    assert "output layer: own" in merge(folder, folder.parent / "ok.safetensors").notes


def test_layers_with_a_gap_are_refused(folder: Path, model: Model) -> None:
    for rank in range(2):
        weights = model.shard(rank, 2, 1, 2)
        renamed = {name.replace("layers.1.", "layers.2."): array for name, array in weights.items()}
        write_safetensors(shard(folder, rank, 1), renamed, "BF16")
    assert "stage 0: 0, 1; stage 1: 0, 2" in refused(folder)


def test_missing_experts_are_refused(tmp_path: Path) -> None:
    model = Model(Shape(experts=4))
    folder = write_shards(tmp_path / "old", model, 1, 1)
    kept = {name: array for name, array in model.shard(0, 1, 0, 1).items() if "local_experts.3." not in name}
    write_safetensors(shard(folder), kept, "BF16")
    assert mentions(refused(folder), "'decoder.layers.0.mlp'", "0 to 3", "(0, 1, 2)")


def test_experts_in_one_tensor_are_refused(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    weights = {"decoder.layers.0.mlp.experts.weight1": np.zeros((4, 8), np.uint16)}
    write_safetensors(shard(tmp_path / "old"), weights, "BF16")
    assert "experts.weight1" in refused(tmp_path / "old")


@pytest.mark.parametrize(
    ("shape", "named"),
    [
        (ModelShape(vocab=13), ("13 entries", "12 rows")),
        (ModelShape(vocab=8), ("12 rows", 8, "2 x TP 2")),
        (ModelShape(kv_heads=3), ("--kv-heads", "--head-dim")),
        (ModelShape(heads=4, kv_heads=4), ("--kv-heads", "--head-dim")),
        (ModelShape(head_dim=3), ("--kv-heads", "--head-dim")),
        (ModelShape(hidden=16), ("16 columns", "[12, 8]")),
    ],
)
def test_a_shape_that_is_not_the_shards_own_is_refused(
    folder: Path, shape: ModelShape, named: tuple[object, ...]
) -> None:
    assert mentions(refused(folder, shape), *named)


@pytest.mark.parametrize(
    ("target", "shape", "named"),
    [
        (
            Target(tp=8, pp=1, vocab_divisor=2),
            ModelShape(heads=4, vocab=11),
            ("4 heads", "8 tensor ranks"),
        ),
        (Target(tp=3, pp=1, vocab_divisor=2), ModelShape(vocab=11), ("3 tensor ranks",)),
        (Target(tp=4, pp=1), ModelShape(), ("12 rows", "128 x TP 4", "--vocab")),
        (Target(tp=2, pp=3), ModelShape(), ("4 layers", "3 stages")),
        (Target(tp=2, pp=2, layers_per_stage=(1, 2)), ModelShape(), ("2 numbers", "4 layers", "1,2")),
    ],
)
def test_a_layout_that_cannot_be_is_refused(
    folder: Path, target: Target, shape: ModelShape, named: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError) as error:
        reshard(folder, folder.parent / "new", target, shape)
    assert mentions(error.value, *named)
    assert sorted(folder.parent.iterdir()) == [folder]


def test_bin_and_safetensors_do_not_mix(folder: Path, model: Model) -> None:
    need_torch()
    shard(folder, 1, 1).unlink()
    write_bin(shard(folder, 1, 1, "bin"), model.shard(1, 2, 1, 2), "BF16")
    assert mentions(refused(folder), "kind")


def test_a_header_written_by_us_is_read_by_others(folder: Path, tmp_path: Path) -> None:
    merge(folder, tmp_path / "one.safetensors")
    data = (tmp_path / "one.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length])["__metadata__"] == {"format": "pt"}
