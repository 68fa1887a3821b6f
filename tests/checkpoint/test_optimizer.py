"""The optimizer's state goes with the weights to another layout, or a line says why it does not."""

from __future__ import annotations

import argparse
import pickle
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.reference import Model, Shape
from tests.checkpoint.shard_files import from_torch, need_torch, same, to_torch, write_shards
from tests.checkpoint.test_sources import dcp_save
from tests.mentions import mentions
from zenith_checkpoint.convert import Target, reshard
from zenith_checkpoint.optimizer.flat_buffers import by_numels, coalesced, in_buckets
from zenith_checkpoint.optimizer.state import in_order
from zenith_checkpoint.output_place import Format
from zenith_checkpoint.reading.dist_folder import DistFolder
from zenith_tune.errors import UsageError

SHAPE = Shape(dtype="F32", divisor=1, vocab=12)
WEIGHTS, MEAN, SQUARE = (Model(SHAPE, seed=seed) for seed in range(3))
MOMENTS = {"exp_avg": MEAN, "exp_avg_sq": SQUARE}
GROUPS = [{"wd_mult": 1.0, "lr": 0.1, "betas": (0.9, 0.99)}, {"wd_mult": 0.0, "lr": 0.1, "betas": (0.9, 0.99)}]


def write_ranks(folder: Path, tp: int, **beside: Any) -> Path:
    """Write what Megatron's optimizer in fp32 saves: parameters numbered with weight decay first."""
    torch = need_torch()
    for t in range(tp):
        shards = {kind: model.shard(t, tp, 0, 1) for kind, model in {"model": WEIGHTS, **MOMENTS}.items()}
        tensors = {
            kind: {name: to_torch(each, "F32") for name, each in shard.items()} for kind, shard in shards.items()
        }
        names = in_order(tensors["model"])
        numbered = [
            [name for name in names if (tensors["model"][name].dim() > 1) == decays] for decays in (True, False)
        ]
        ids = {name: number for number, name in enumerate(numbered[0] + numbered[1])}
        step = torch.tensor(7.0)
        state = {
            number: {"step": step, **{kind: tensors[kind][name] for kind in MOMENTS}} for name, number in ids.items()
        }
        groups = [{**each, "params": [ids[name] for name in held]} for each, held in zip(GROUPS, numbered, strict=True)]
        place = folder / "iter_0000020" / f"mp_rank_{t:02d}"
        place.mkdir(parents=True)
        content = {
            "model": {name: tensors["model"][name] for name in names},
            "optimizer": {"state": state, "param_groups": groups},
            "opt_param_scheduler": {"num_steps": 20},
            "args": argparse.Namespace(num_attention_heads=SHAPE.heads, num_query_groups=SHAPE.groups),
            "iteration": 20,
        }
        torch.save({**content, **beside}, place / "model_optim_rng.pt")
    return folder


def target(tp: int, pp: int, kind: Format) -> Target:
    return Target(tp=tp, pp=pp, format=kind, vocab_divisor=1, with_optimizer=True)


def test_moments_step_and_groups_go_to_other_ranks_and_back_by_the_other_format(tmp_path: Path) -> None:
    torch = need_torch()
    written = reshard(write_ranks(tmp_path / "run", 2), tmp_path / "dist", target(2, 1, Format.TORCH_DIST))
    assert written.has_optimizer and not any(note.startswith("left out:") for note in written.notes)
    assert reshard(tmp_path / "dist", tmp_path / "ranks", target(1, 2, Format.MEGATRON)).has_optimizer
    for p in range(2):
        path = tmp_path / "ranks" / "iter_0000020" / f"mp_rank_00_{p:03d}" / "model_optim_rng.pt"
        loaded = torch.load(path, weights_only=False)
        groups, state = loaded["optimizer"]["param_groups"], loaded["optimizer"]["state"]
        assert [{**group, "params": None} for group in groups] == [{**group, "params": None} for group in GROUPS]
        assert loaded["opt_param_scheduler"] == {"num_steps": 20}
        assert sorted(number for group in groups for number in group["params"]) == sorted(state)
        assert {float(entry["step"]) for entry in state.values()} == {7.0}
        names = in_order(loaded["model"])
        ordered = [name for wide in (True, False) for name in names if (loaded["model"][name].dim() > 1) == wide]
        for kind, model in MOMENTS.items():
            found = {name: from_torch(state[number][kind]) for number, name in enumerate(ordered)}
            assert same(found, model.shard(0, 1, p, 2))


def test_what_cannot_be_carried_is_left_out_with_the_reason(tmp_path: Path) -> None:
    momentum = {"state": {0: {"momentum_buffer": 1}}, "param_groups": [{"wd_mult": 1.0, "params": [0]}]}
    for name, optimizer in {"sgd": momentum, "none": None}.items():
        folder = write_ranks(tmp_path / name, 1, optimizer=optimizer)
        written = reshard(folder, tmp_path / f"{name}-new", target(1, 2, Format.MEGATRON))
        assert not written.has_optimizer
        assert any(note.startswith("optimizer state: left out (") for note in written.notes)


def test_a_model_without_one_is_written_with_a_line_that_says_so(tmp_path: Path) -> None:
    write_shards(tmp_path / "run", WEIGHTS, 1, 1, "safetensors")
    written = reshard(tmp_path / "run", tmp_path / "new", target(1, 2, Format.MEGATRON))
    assert not written.has_optimizer
    assert any(note.startswith("optimizer state: left out (") for note in written.notes)


def test_shards_that_megatron_does_not_load_hold_no_optimizer(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        reshard(write_ranks(tmp_path / "run", 1), tmp_path / "new", target(1, 2, Format.SAFETENSORS))
    assert mentions(str(refused.value), "--with-optimizer", "safetensors")


@pytest.mark.parametrize("bucket", [None, 100, 200, 10**6])
@pytest.mark.parametrize("is_shared", [False, True])
def test_buckets_are_found_by_their_sizes_as_they_were_cut(bucket: int | None, is_shared: bool) -> None:
    sizes = {"embedding.word_embeddings.weight": 130, "a": 24, "b": 64, "c": 96, "output_layer.weight": 130}
    buckets = in_buckets(sizes, bucket, is_shared=is_shared)
    assert by_numels(sizes, [each.numel for each in buckets]) == buckets
    places = sorted((start, start + sizes[name]) for name, start in coalesced(buckets).items())
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    assert all(start % 64 == 0 for each in buckets for start in each.starts.values())


PROJECTION = "decoder.layers.self_attention.linear_proj.weight"


def whole_tensors(dist: DistFolder) -> dict[str, Any]:
    return {key: dist.data(key).read().clone() for key in dist.entries}


def save_flat(folder: Path, state: dict[str, Any], keys: list[str]) -> None:
    """Save some tensors as Megatron before 0.15 saves those of its distributed optimizer.

    Tensor ranks cut them by columns, and data-parallel ranks hold each cell of that in flat pieces.
    """
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata

    torch = need_torch()
    pieces: dict[str, dict[tuple[int, ...], Any]] = {}
    for key in keys:
        tensor = state.pop(key)
        for layer, half in product(range(len(tensor)), range(2)):
            cell = tensor[layer].chunk(2, 1)[half].reshape(-1)
            for start, stop in ((0, 5), (5, 18), (18, len(cell))):  # across the rows' ends
                pieces.setdefault(key, {})[layer, 0, half, start] = cell[start:stop].reshape(1, 1, 1, -1).clone()
    named = {f"{key}#{at}": each for key, found in pieces.items() for at, each in found.items()}
    dcp_save(folder, {**state, **named})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    places = {index.fqn: place for index, place in metadata.storage_data.items()}
    for key, found in pieces.items():
        entries = [metadata.state_dict_metadata.pop(f"{key}#{at}") for at in found]
        chunks = [ChunkStorageMetadata(torch.Size(at), each.shape) for at, each in found.items()]
        size = torch.Size((SHAPE.layers, 1, 2, sum(each.numel() for each in found.values()) // SHAPE.layers // 2))
        metadata.state_dict_metadata[key] = TensorStorageMetadata(entries[0].properties, size, chunks)
        for at in found:
            metadata.storage_data[MetadataIndex(key, torch.Size(at))] = places[f"{key}#{at}"]
    original = (SHAPE.layers, SHAPE.hidden, SHAPE.heads * SHAPE.head_dim)
    metadata.mcore_data = {key: {"nd_reformulated_orig_global_shape": original} for key in keys}
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))


def test_tensors_that_were_saved_flat_come_back_in_their_shape(tmp_path: Path) -> None:
    torch = need_torch()
    place = reshard(write_ranks(tmp_path / "run", 2), tmp_path / "dist", target(2, 1, Format.TORCH_DIST)).paths[0]
    state = whole_tensors(DistFolder.open(place))
    weights = {key: each for key, each in state.items() if not key.startswith("optimizer.")}
    state |= {f"optimizer.state.fp32_param.{key}": each.clone() for key, each in weights.items()}
    kinds = {"param": "fp32_param", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
    folder = tmp_path / "flat" / "iter_0000020"
    save_flat(folder, dict(state), [f"optimizer.state.{kind}.{PROJECTION}" for kind in kinds.values()])
    common = torch.load(place / "common.pt", weights_only=False)
    groups = [{**group, "step": 7} for group in GROUPS]
    common["optimizer"] = {
        "optimizer": {"param_groups": groups},
        "param_state_sharding_type": "fully_sharded_model_space",
    }
    torch.save(common, folder / "common.pt")
    written = reshard(tmp_path / "flat", tmp_path / "new", target(1, 1, Format.TORCH_DIST))
    assert written.has_optimizer
    found = whole_tensors(DistFolder.open(written.paths[0]))
    for kind, before in kinds.items():
        for key in weights:
            assert torch.equal(found[f"optimizer.state.{kind}.{key}"], state[f"optimizer.state.{before}.{key}"])
    again = torch.load(written.paths[0] / "common.pt", weights_only=False)["optimizer"]
    assert again == {"optimizer": {"param_groups": groups}, "param_state_sharding_type": "fully_reshardable"}


def test_masters_that_do_not_round_to_the_weights_are_refused(tmp_path: Path) -> None:
    torch = need_torch()
    place = reshard(write_ranks(tmp_path / "run", 1), tmp_path / "dist", target(1, 1, Format.TORCH_DIST)).paths[0]
    state = whole_tensors(DistFolder.open(place))
    weights = {key: each for key, each in state.items() if not key.startswith("optimizer.")}
    state |= {f"optimizer.state.fp32_param.{key}": each.flip(0) for key, each in weights.items()}
    folder = tmp_path / "other" / "iter_0000020"
    dcp_save(folder, state)
    torch.save(torch.load(place / "common.pt", weights_only=False), folder / "common.pt")
    with pytest.raises(UsageError) as refused:
        reshard(tmp_path / "other", tmp_path / "new", target(1, 1, Format.TORCH_DIST))
    assert mentions(str(refused.value), "--with-optimizer")
