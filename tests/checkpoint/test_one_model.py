"""Shards of two models, of two checkpoints, or of a model that lacks a part are one clear line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.reference import CORE, OLD, Model, Shape, Weights
from tests.checkpoint.shard_files import need_torch, read, to_torch, write_safetensors, write_shards
from tests.checkpoint.test_refused_shards import refused, shard
from tests.mentions import mentions
from zenith_checkpoint.convert import Target, merge, reshard
from zenith_checkpoint.model_shape import ModelShape
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError

FILES = "pytorch_model_tp_0_pp_0.safetensors", "pytorch_model_tp_0_pp_1.safetensors"


def write_two(folder: Path, first: Model, second: Model) -> Path:
    """Write the first stage of one model and the second of another, on two tensor ranks."""
    folder.mkdir()
    for stage, model in enumerate((first, second)):
        for rank in range(2):
            write_safetensors(shard(folder, rank, stage), model.shard(rank, 2, stage, 2), model.shape.dtype)
    return folder


def edit_stage(folder: Path, model: Model, stage: int, edit: Callable[[Weights], object]) -> None:
    for rank in range(2):
        weights = model.shard(rank, 2, stage, 2)
        edit(weights)
        write_safetensors(shard(folder, rank, stage), weights, model.shape.dtype)


def without(part: str) -> Callable[[Weights], None]:
    def edit(weights: Weights) -> None:
        found = [name for name in weights if part in name]
        assert found, part
        for name in found:
            del weights[name]

    return edit


@pytest.mark.parametrize("names", [CORE, OLD], ids=["core", "old"])
@pytest.mark.parametrize(
    ("other", "part", "sizes"),
    [
        ({"hidden": 16}, "qkv", ("BF16 [16, 8]", "BF16 [16, 16]")),
        ({"ffn": 12}, "up", ("BF16 [16, 8]", "BF16 [24, 8]")),
        ({"groups": 4}, "qkv", ("BF16 [16, 8]", "BF16 [24, 8]")),
        ({"dtype": "F32"}, "qkv", ("BF16 [16, 8]", "F32 [16, 8]")),
    ],
)
def test_stages_of_two_models_are_refused(
    tmp_path: Path, names: dict[str, str], other: dict[str, Any], part: str, sizes: tuple[str, str]
) -> None:
    folder = write_two(tmp_path / "old", Model(Shape(names=names)), Model(Shape(**{**other, "names": names})))
    cause = refused(folder)
    assert names[part] in cause
    assert f"{sizes[0]} in {FILES[0]}" in cause and f"{sizes[1]} in {FILES[1]}" in cause
    assert mentions(cause, "--any-model")


@pytest.mark.parametrize("part", ["layers.1.pre_mlp_layernorm", "layers.1.mlp.", "layers.1.self_attention."])
def test_a_layer_that_lacks_a_part_is_refused(tmp_path: Path, part: str) -> None:
    model = Model(Shape())
    folder = write_shards(tmp_path / "old", model, 2, 2)
    edit_stage(folder, model, 1, without(part))
    cause = refused(folder)
    assert mentions(cause, "layer 3", FILES[1])
    assert f"'decoder.layers.0.{part.removeprefix('layers.1.')}" in cause


def test_a_head_of_another_width_than_the_layers_is_refused(tmp_path: Path) -> None:
    model = Model(Shape())
    folder = write_shards(tmp_path / "old", model, 2, 2)
    wide = np.zeros((6, 16), np.uint16)
    edit_stage(folder, model, 1, lambda weights: weights.update({"output_layer.weight": wide}))
    assert mentions(refused(folder), 8, "'embedding.word_embeddings.weight'", FILES[0], 16, "'output_layer.weight'")


@pytest.mark.parametrize(
    ("stage", "part", "named"),
    [
        (0, "word_embeddings", ("'output_layer.weight'", "'embedding.word_embeddings.weight'")),
        (1, "final_layernorm", ("'embedding.word_embeddings.weight'", "final norm")),
    ],
)
def test_a_language_model_without_an_end_is_refused(
    tmp_path: Path, stage: int, part: str, named: tuple[str, ...]
) -> None:
    model = Model(Shape())
    folder = write_shards(tmp_path / "old", model, 2, 2)
    edit_stage(folder, model, stage, without(part))
    assert mentions(refused(folder), *named)
    merge(folder, tmp_path / "one.safetensors", ModelShape(any_model=True))
    assert not any(part in name for name in read(tmp_path / "one.safetensors")[0])


def test_layers_that_do_differ_are_joined_on_request(tmp_path: Path) -> None:
    first, second = Model(Shape()), Model(Shape(ffn=12))
    folder = write_two(tmp_path / "old", first, second)
    merge(folder, tmp_path / "one.safetensors", ModelShape(any_model=True))
    found, _ = read(tmp_path / "one.safetensors")
    assert found["decoder.layers.0.mlp.linear_fc2.weight"].shape == (8, 8)
    assert found["decoder.layers.3.mlp.linear_fc2.weight"].shape == (8, 12)


def test_dense_layers_before_a_mixture_of_experts_are_of_one_model(tmp_path: Path) -> None:
    folder = write_two(tmp_path / "old", Model(Shape(ffn=12)), Model(Shape(ffn=4, experts=2)))
    assert merge(folder, tmp_path / "one.safetensors").num_layers == 4


def test_a_hybrid_of_three_kinds_of_layers_is_of_one_model(tmp_path: Path) -> None:
    model = Model(Shape(layers=3))
    kept = {0: "mixer.", 1: "self_attention.", 2: "mlp."}
    weights = model.shard(0, 1, 0, 1)
    for name in [name for name in weights if ".layers." in name]:
        if f".{kept[int(name.split('.')[2])]}" not in name:
            del weights[name]
    weights["decoder.layers.0.mixer.A_log"] = model.final
    (tmp_path / "old").mkdir()
    write_safetensors(shard(tmp_path / "old"), weights, "BF16")
    assert merge(tmp_path / "old", tmp_path / "one.safetensors").num_layers == 3


def test_experts_of_different_widths_are_refused(tmp_path: Path) -> None:
    one, two = Model(Shape(experts=2, ffn=8)), Model(Shape(experts=2, ffn=4))
    folder = write_shards(tmp_path / "old", one, 2, 2)
    narrow = "decoder.layers.1.mlp.experts.local_experts.1."
    for rank in range(2):
        other = {name: array for name, array in two.shard(rank, 2, 0, 2).items() if name.startswith(narrow)}
        write_safetensors(shard(folder, rank, 0), {**one.shard(rank, 2, 0, 2), **other}, "BF16")
    assert f"'{narrow}linear_fc1.weight' BF16 [8, 8] in {FILES[0]}" in refused(folder)


@pytest.mark.parametrize("key", ["iteration", "consumed_train_samples", "checkpoint_version"])
def test_shards_of_two_checkpoints_are_refused(tmp_path: Path, key: str) -> None:
    torch = need_torch()
    model, folder = Model(Shape()), tmp_path / "old"
    folder.mkdir()
    for stage, value in enumerate((3, 4)):
        weights = {name: to_torch(array, "BF16") for name, array in model.shard(0, 1, stage, 2).items()}
        torch.save({"model": weights, key: value, "rank": stage}, shard(folder, 0, stage, "bin"))
    files = "3 in pytorch_model_tp_0_pp_0.bin and 4 in pytorch_model_tp_0_pp_1.bin"
    assert mentions(refused(folder), key, files)


SPEC = ModelSpec(name="m", num_layers=4, hidden=8, ffn_hidden=8, num_heads=4, num_kv_heads=2, head_dim=2, vocab=11)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"ffn": 12}, ("8 columns", "BF16 [8, 12]")),
        ({"groups": 4}, ("24 rows", 8)),
    ],
)
def test_a_named_model_of_another_width_or_other_groups_is_refused(
    tmp_path: Path, other: dict[str, Any], named: tuple[object, ...]
) -> None:
    folder = write_shards(tmp_path / "old", Model(Shape(**other)), 2, 2)
    assert mentions(refused(folder, ModelShape.of_model(SPEC)), *named)


def test_a_named_model_of_other_experts_is_refused(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "old", Model(Shape(experts=2)), 2, 2)
    assert mentions(refused(folder, ModelShape(num_experts=3)), "3 rows", "BF16 [2, 8]")
    assert mentions(refused(folder, ModelShape(expert_ffn=6)), "6 columns", "BF16 [8, 8]")


UNKNOWN = [
    ("model.layers.{}.self_attn.q_proj.weight", "'model.layers.0.self_attn.q_proj"),
    ("decoder.layers.{}.mixer.in_proj.weight", "Mamba"),
]


def write_unknown(folder: Path, name: str, tp: int, dims: tuple[int, ...] = (4, 8)) -> Path:
    folder.mkdir()
    weights = {name.format(number): np.ones(dims, np.uint16) for number in range(2)}
    for rank in range(tp):
        write_safetensors(shard(folder, rank), weights, "BF16")
    return folder


@pytest.mark.parametrize(("name", "problem"), UNKNOWN)
def test_a_matrix_that_no_rule_knows_is_not_called_split(tmp_path: Path, name: str, problem: str) -> None:
    folder = write_unknown(tmp_path / "old", name, 1)
    with pytest.raises(UsageError) as error:
        reshard(folder, tmp_path / "new", Target(tp=2, pp=1))
    assert problem in str(error.value) and "choose --tp 1" in str(error.value)
    assert not (tmp_path / "new").exists()
    assert len(reshard(folder, tmp_path / "new", Target(tp=1, pp=2)).paths) == 2


def test_a_vector_of_a_mamba_mixer_is_not_called_split(tmp_path: Path) -> None:
    folder = write_unknown(tmp_path / "old", "decoder.layers.{}.mixer.A_log", 2, (4,))
    with pytest.raises(UsageError, match=r"'decoder.layers.0.mixer.A_log', BF16 \[4\], .*Mamba"):
        reshard(folder, tmp_path / "new", Target(tp=4, pp=1))


@pytest.mark.parametrize("name", ["mlp.router.weight", "self_attention.linear_kv_down_proj.weight", "norm.weight"])
def test_what_megatron_keeps_whole_is_written_whole(tmp_path: Path, name: str) -> None:
    dims = (4,) if name == "norm.weight" else (4, 8)
    folder = write_unknown(tmp_path / "old", f"decoder.layers.{{}}.{name}", 1, dims)
    reshard(folder, tmp_path / "new", Target(tp=2, pp=1))
    found, _ = read(shard(tmp_path / "new", 1))
    assert found[f"decoder.layers.1.{name}"].shape == dims


def test_an_unknown_matrix_that_all_ranks_held_whole_stays_whole(tmp_path: Path) -> None:
    folder = write_unknown(tmp_path / "old", "decoder.layers.{}.adapter.weight", 2)
    assert len(reshard(folder, tmp_path / "new", Target(tp=4, pp=1)).paths) == 4
