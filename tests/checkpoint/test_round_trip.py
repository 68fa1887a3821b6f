from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from tests.checkpoint.reference import CORE, OLD, Model, Shape, Weights, random_shape
from tests.checkpoint.shard_files import need_torch, read, same, write_safetensors, write_shards
from tests.mentions import mentions
from tests.thoroughness import few_quick
from zenith_checkpoint.convert import Target, merge, reshard
from zenith_checkpoint.model_shape import ModelShape
from zenith_checkpoint.split_rules import Numbering

NUM_MODELS = 60
EMBEDDING = "embedding.word_embeddings.weight"


def model_shape(shape: Shape) -> ModelShape:
    return ModelShape(heads=shape.heads, kv_heads=shape.groups, vocab=shape.vocab)


def read_folder(folder: Path, tp: int, pp: int, extension: str) -> dict[tuple[int, int], Path]:
    paths = {(t, p): folder / f"pytorch_model_tp_{t}_pp_{p}.{extension}" for t in range(tp) for p in range(pp)}
    assert sorted(paths.values()) == sorted(folder.iterdir())
    return paths


def check_round_trip(folder: Path, seed: int, extension: str) -> None:
    random = Random(seed)
    shape = random_shape(random)
    model = Model(shape, seed)
    degrees = [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2, shape.layers)]
    (tp, pp), (new_tp, new_pp) = random.choice(degrees), random.choice(degrees)
    is_global, nested = random.random() < 0.3, extension == "bin" and random.random() < 0.5
    source = write_shards(folder / "old", model, tp, pp, extension, global_numbers=is_global, nested=nested)

    merged = folder / f"merged.{random.choice(['safetensors', extension])}"
    merge(source, merged, model_shape(shape), vocab_divisor=shape.divisor)
    weights, dtypes = read(merged)
    assert same(weights, model.whole()) and dtypes == {shape.dtype}

    target = Target(tp=new_tp, pp=new_pp, vocab_divisor=shape.divisor)
    reshard(source, folder / "new", target, model_shape(shape))
    keeps_numbers = is_global and pp > 1
    for (rank, stage), path in read_folder(folder / "new", new_tp, new_pp, extension).items():
        expected = model.shard(rank, new_tp, stage, new_pp, global_numbers=keeps_numbers)
        found, dtypes = read(path)
        assert sorted(found) == sorted(expected) and dtypes == {shape.dtype}
        for name, array in expected.items():
            assert found[name].shape == array.shape, name
            kept = slice(0, max(0, min(len(array), shape.vocab - rank * len(array)))) if is_table(name) else slice(None)
            assert (found[name][kept] == array[kept]).all(), name

    again = folder / "again.safetensors"
    merge(folder / "new", again, model_shape(shape), vocab_divisor=shape.divisor)
    assert same(read(again)[0], model.whole())


def is_table(name: str) -> bool:
    return name.endswith(("word_embeddings.weight", CORE["head"], OLD["tied"]))


@pytest.mark.parametrize("seed", few_quick(range(NUM_MODELS), 15))
def test_a_random_model_comes_back_bit_for_bit_through_safetensors(tmp_path: Path, seed: int) -> None:
    check_round_trip(tmp_path, seed, "safetensors")


@pytest.mark.parametrize("seed", few_quick(range(1000, 1000 + NUM_MODELS // 2), 6))
def test_a_random_model_comes_back_bit_for_bit_through_bin(tmp_path: Path, seed: int) -> None:
    need_torch()
    check_round_trip(tmp_path, seed, "bin")


def test_the_random_models_are_of_every_kind() -> None:
    shapes = [random_shape(Random(seed)) for seed in range(NUM_MODELS)]
    assert {shape.tied for shape in shapes} == {shape.gated for shape in shapes} == {True, False}
    assert {shape.bias for shape in shapes} == {bool(shape.experts) for shape in shapes} == {True, False}
    assert {shape.groups < shape.heads for shape in shapes} == {True, False}
    assert {shape.padded(4) > shape.vocab for shape in shapes} == {True, False}
    assert len({shape.dtype for shape in shapes}) == 4


def test_more_ranks_than_query_groups_cut_through_a_group_as_megatron_core_does(tmp_path: Path) -> None:
    model = Model(Shape(heads=4, groups=1))
    source = write_shards(tmp_path / "old", model, 4, 1)
    merge(source, tmp_path / "one.safetensors", model_shape(model.shape), vocab_divisor=2)
    assert same(read(tmp_path / "one.safetensors")[0], model.whole())


def test_padding_is_kept_and_said_where_nobody_gives_the_vocabulary(tmp_path: Path) -> None:
    model = Model(Shape(vocab=11, divisor=4))
    source = write_shards(tmp_path / "old", model, 2, 1)
    written = merge(source, tmp_path / "one.safetensors")
    assert same(read(tmp_path / "one.safetensors")[0], model.whole(16))
    assert mentions(written.notes[0], "vocabulary", "16 rows")


def test_trained_padding_is_kept_as_far_as_it_goes_and_the_last_row_repeated_beyond(tmp_path: Path) -> None:
    model = Model(Shape(vocab=11, divisor=1))
    source = write_shards(tmp_path / "old", model, 2, 1)
    reshard(source, tmp_path / "new", Target(tp=1, pp=1, vocab_divisor=8), model_shape(model.shape))
    found, _ = read(tmp_path / "new" / "pytorch_model_tp_0_pp_0.safetensors")
    table = found["embedding.word_embeddings.weight"]
    expected = model.whole(12)["embedding.word_embeddings.weight"]
    assert (table[:12] == expected).all()
    assert len(table) == 16 and (table[12:] == expected[-1]).all()


def test_layers_may_be_spread_unevenly_and_numbered_through(tmp_path: Path) -> None:
    model = Model(Shape(layers=4))
    source = write_shards(tmp_path / "old", model, 1, 2)
    target = Target(tp=1, pp=3, layers_per_stage=(1, 1, 2), numbering=Numbering.GLOBAL)
    reshard(source, tmp_path / "new", target)
    found, _ = read(tmp_path / "new" / "pytorch_model_tp_0_pp_2.safetensors")
    assert {name.split(".")[2] for name in found if "layers." in name} == {"2", "3"}
    merge(tmp_path / "new", tmp_path / "one.safetensors")
    assert same(read(tmp_path / "one.safetensors")[0], model.whole(12))


def test_whole_experts_stay_whole(tmp_path: Path) -> None:
    model = Model(Shape(experts=2))
    folder = write_shards(tmp_path / "old", model, 2, 1)
    for rank in range(2):
        weights = model.shard(rank, 2, 0, 1)
        whole = {name: array for name, array in model.whole().items() if ".experts." in name}
        write_safetensors(folder / f"pytorch_model_tp_{rank}_pp_0.safetensors", {**weights, **whole}, "BF16")
    shape = ModelShape(vocab=11, whole_experts=True)
    merge(folder, tmp_path / "one.safetensors", shape, vocab_divisor=2)
    assert same(read(tmp_path / "one.safetensors")[0], model.whole())


def grouped(weights: Weights) -> Weights:
    """Name experts as Transformer Engine's grouped layers do."""
    name_of = re.compile(r"local_experts\.(\d+)\.(linear_fc[12])\.(weight|bias)")
    return {name_of.sub(r"\2.\3\1", name): array for name, array in weights.items()}


def test_grouped_experts_are_joined_like_single_ones(tmp_path: Path) -> None:
    model = Model(Shape(experts=3, bias=True))
    folder = write_shards(tmp_path / "old", model, 2, 1)
    for rank in range(2):
        weights = grouped(model.shard(rank, 2, 0, 1))
        write_safetensors(folder / f"pytorch_model_tp_{rank}_pp_0.safetensors", weights, "BF16")
    merge(folder, tmp_path / "one.safetensors", model_shape(model.shape), vocab_divisor=2)
    assert same(read(tmp_path / "one.safetensors")[0], grouped(model.whole()))


def test_multi_token_prediction_keeps_its_layers_and_the_embedding_on_the_last_stage(tmp_path: Path) -> None:
    model = Model(Shape())
    folder = write_shards(tmp_path / "old", model, 1, 2)
    mtp = {"mtp.layers.0.enorm.weight": model.final}
    first, last = (model.shard(0, 1, stage, 2) for stage in range(2))
    table = {EMBEDDING: first[EMBEDDING]}
    write_safetensors(folder / "pytorch_model_tp_0_pp_1.safetensors", {**last, **mtp, **table}, "BF16")
    merge(folder, tmp_path / "one.safetensors", model_shape(model.shape), vocab_divisor=2)
    assert same(read(tmp_path / "one.safetensors")[0], {**model.whole(), **mtp})
    reshard(folder, tmp_path / "new", Target(tp=2, pp=4, vocab_divisor=2), model_shape(model.shape))
    found, _ = read(tmp_path / "new" / "pytorch_model_tp_1_pp_3.safetensors")
    whole_stage = model.shard(1, 2, 3, 4)
    assert sorted(found) == sorted([*whole_stage, *mtp, EMBEDDING])
    assert (found[EMBEDDING] == model.shard(1, 2, 0, 4)[EMBEDDING]).all()
