"""What Megatron-LM, torch.distributed and Accelerate write is read, and nothing in it is run."""

from __future__ import annotations

import argparse
import copyreg
import io
import json
import os
import pickle
import signal
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.checkpoint.reference import Model, Shape, Weights
from tests.checkpoint.shard_files import need_torch, read, same, to_torch, write_safetensors
from tests.checkpoint.test_refused_shards import refused
from tests.mentions import mentions
from tests.requirements import need_module
from zenith_checkpoint.convert import merge
from zenith_checkpoint.reading.torch_file import Described, read_torch_file
from zenith_tune.errors import UsageError

EXPERTS = ".experts.local_experts."


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("was-run",)


def save(path: Path, weights: Weights, **beside: Any) -> None:
    torch = need_torch()
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: to_torch(array, "BF16") for name, array in weights.items()}
    torch.save({"model": tensors, "checkpoint_version": 3.0, "iteration": 20, **beside}, path)


def of_expert_rank(weights: Weights, rank: int, num_local: int) -> Weights:
    """Return the weights with this rank's experts only, counted from 0."""
    kept = {}
    for name, array in weights.items():
        head, is_expert, tail = name.partition(EXPERTS)
        number, _, rest = tail.partition(".")
        if not is_expert:
            kept[name] = array
        elif int(number) // num_local == rank:
            kept[f"{head}{EXPERTS}{int(number) % num_local}.{rest}"] = array
    return kept


def write_legacy(folder: Path, model: Model, tp: int, pp: int, ep: int, *, has_args: bool = True) -> Path:
    folder.mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text("20\n")
    beside = {"args": argparse.Namespace(expert_model_parallel_size=ep)} if has_args else {}
    for t in range(tp):
        for p in range(pp):
            for e in range(ep):
                name = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "") + (f"_{e:03d}" if ep > 1 else "")
                weights = of_expert_rank(model.shard(t, tp, p, pp), e, max(model.shape.experts // ep, 1))
                save(folder / "iter_0000020" / name / "model_optim_rng.pt", weights, optimizer={"a": [1]}, **beside)
    return folder


@pytest.mark.parametrize(("tp", "pp", "ep"), [(1, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2)])
def test_the_folders_of_all_ranks_are_joined_with_the_experts_of_each(
    tmp_path: Path, tp: int, pp: int, ep: int
) -> None:
    model = Model(Shape(experts=4 if ep > 1 else 0))
    folder = write_legacy(tmp_path / "run", model, tp, pp, ep)
    for place in (folder, folder / "iter_0000020"):
        output = tmp_path / f"{place.name}.safetensors"
        written = merge(place, output)
        assert same(read(output)[0], model.whole(model.shape.padded(tp)))
        assert any(note.startswith("optimizer state:") for note in written.notes)


@pytest.mark.parametrize(("tp", "pp", "ep"), [(2, 1, 2), (1, 2, 1), (2, 2, 2)])
def test_expert_ranks_and_stages_are_told_apart_without_arguments_of_megatron(
    tmp_path: Path, tp: int, pp: int, ep: int
) -> None:
    model = Model(Shape(experts=4))
    merge(write_legacy(tmp_path / "run", model, tp, pp, ep, has_args=False), tmp_path / "one.safetensors")
    assert same(read(tmp_path / "one.safetensors")[0], model.whole(model.shape.padded(tp)))


def test_experts_that_no_tensor_rank_splits_are_taken_from_wherever_they_are(tmp_path: Path) -> None:
    model = Model(Shape(experts=4))
    folder = tmp_path / "iter_0000020"
    args = argparse.Namespace(expert_model_parallel_size=2, expert_tensor_parallel_size=1)
    whole = {name: array for name, array in model.whole().items() if EXPERTS in name}
    for rank in range(2):  # TP 2 and EP 2 on two GPUs
        weights = of_expert_rank({**model.shard(rank, 2, 0, 1), **whole}, rank, 2)
        save(folder / f"mp_rank_{rank:02d}_{rank:03d}" / "model_optim_rng.pt", weights, args=args)
    merge(folder, tmp_path / "one.safetensors")
    assert same(read(tmp_path / "one.safetensors")[0], model.whole(model.shape.padded(2)))


def test_virtual_stages_follow_one_another_chunk_by_chunk(tmp_path: Path) -> None:
    torch, model = need_torch(), Model(Shape(layers=4))
    for p in range(2):
        path = tmp_path / "run" / f"mp_rank_00_{p:03d}" / "model_optim_rng.pt"
        path.parent.mkdir(parents=True)
        chunks = {f"model{v}": model.shard(0, 1, v * 2 + p, 4) for v in range(2)}
        named = {key: {name: to_torch(each, "BF16") for name, each in chunk.items()} for key, chunk in chunks.items()}
        torch.save({**named, "iteration": 3}, path)
    merge(tmp_path / "run", tmp_path / "one.safetensors")
    assert same(read(tmp_path / "one.safetensors")[0], model.whole(model.shape.padded(1)))


def test_a_missing_rank_and_other_weights_of_an_expert_rank_are_refused(tmp_path: Path) -> None:
    folder = write_legacy(tmp_path / "run", Model(Shape(experts=4)), 2, 1, 2)
    other = Model(Shape(experts=4), seed=1)
    path = folder / "iter_0000020" / "mp_rank_01_001" / "model_optim_rng.pt"
    save(path, of_expert_rank(other.shard(1, 2, 0, 1), 1, 2))
    assert mentions(refused(folder), "mp_rank_01_001", "expert ranks")
    path.unlink()
    path.parent.rmdir()
    assert mentions(refused(folder), "mp_rank_01_000", "2 expert ranks")


def dcp_save(folder: Path, state: dict[str, Any]) -> Path:
    need_torch()
    import torch.distributed.checkpoint as dcp

    with pytest.warns(UserWarning, match="single process"):
        dcp.save(state, checkpoint_id=str(folder), no_dist=True)
    return folder


def test_stacked_layers_and_experts_of_torch_dist_come_apart(tmp_path: Path) -> None:
    torch, model = need_torch(), Model(Shape(experts=3))
    whole = model.whole()
    stacked: dict[str, Any] = {}
    for name, array in whole.items():
        head, is_layer, tail = name.partition("decoder.layers.")
        rest = tail.partition(".")[2].partition(EXPERTS)
        key = f"{head}{is_layer}{rest[0]}{'.experts.experts.' + rest[2].partition('.')[2] if rest[1] else rest[2]}"
        stacked.setdefault(key if is_layer else name, []).append(to_torch(array, "BF16"))
    state = {
        key: torch.stack(parts).reshape(4, -1, *parts[0].shape) if ".experts." in key else torch.stack(parts)
        for key, parts in stacked.items()
    }
    state = {key: tensor if ".layers." in key else tensor[0] for key, tensor in state.items()}
    dcp_save(tmp_path / "iter_0000001", {**state, "optimizer.state.exp_avg.x": torch.ones(2)})
    written = merge(tmp_path / "iter_0000001", tmp_path / "one.safetensors")
    assert same(read(tmp_path / "one.safetensors")[0], whole)
    assert any(note.startswith("optimizer state:") for note in written.notes)


def test_zarr_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "run" / "decoder.final_layernorm.weight").mkdir(parents=True)
    (tmp_path / "run" / "decoder.final_layernorm.weight" / ".zarray").write_text("{}")
    assert mentions(refused(tmp_path / "run"), "zarr", "--ckpt-format torch_dist")


def test_a_flipped_bit_in_a_distcp_file_is_noticed(tmp_path: Path) -> None:
    torch = need_torch()
    weight = torch.randn(64, 8)
    folder = dcp_save(tmp_path / "run", {"decoder.layers.norm.weight": weight})
    path = folder / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[data.index(weight.numpy().tobytes()) + 100] ^= 1
    path.write_bytes(data)
    assert mentions(refused(folder), path, "checksum")


def test_metadata_of_another_size_than_its_chunks_is_refused(tmp_path: Path) -> None:
    torch = need_torch()
    folder = dcp_save(tmp_path / "run", {"decoder.layers.norm.weight": torch.randn(4, 200)})
    data = (folder / ".metadata").read_bytes()
    assert data.count(b"K\xc8") == 2  # 200, of the tensor and of its chunk
    for place in (data.index(b"K\xc8"), data.rindex(b"K\xc8")):
        (folder / ".metadata").write_bytes(data[:place] + b"K\xc9" + data[place + 2 :])
        assert refused(folder)


def test_metadata_with_code_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".metadata").write_bytes(pickle.dumps(Bomb()))
    assert mentions(refused(tmp_path / "run"), "posix.mkdir")
    assert not (tmp_path / "was-run").exists()


def test_code_inside_a_distcp_file_is_refused_and_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = need_torch()
    monkeypatch.chdir(tmp_path)
    folder = dcp_save(tmp_path / "run", {"decoder.layers.norm.weight": torch.randn(4, 8)})
    path = folder / "__0_0.distcp"
    hostile = io.BytesIO()
    torch.save(Bomb(), hostile)
    path.write_bytes(hostile.getvalue().ljust(path.stat().st_size, b"\0")[: path.stat().st_size])
    assert "shard" in refused(folder)
    assert not (tmp_path / "was-run").exists()


def test_metadata_that_names_a_file_elsewhere_is_refused(tmp_path: Path) -> None:
    torch = need_torch()
    folder = dcp_save(tmp_path / "run", {"norm.weight": torch.ones(3)})
    data = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(data.replace(b"__0_0.distcp", b"../../secret"))
    assert mentions(refused(folder), "'../../secret'")


@pytest.mark.parametrize("place", ["args", "optimizer", "rng_state"])
def test_code_beside_the_weights_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "run" / "mp_rank_00" / "model_optim_rng.pt", Model(Shape()).whole(), **{place: Bomb()})
    assert mentions(refused(tmp_path / "run"), "posix.mkdir")
    assert not (tmp_path / "was-run").exists()


def pickled(path: Path, data: bytes) -> Path:
    """Write a file of torch.save whose pickle is this one."""
    torch = need_torch()
    torch.save({}, path)
    with zipfile.ZipFile(path) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, record in records.items():
            archive.writestr(name, data if name.endswith("data.pkl") else record)
    return path


def test_objects_are_described_and_never_made(tmp_path: Path) -> None:
    call = b"\x80\x02cnumpy\nfromfile\nX\x04\x00\x00\x00/etc\x85R."  # a function of a package that checkpoints name
    described = read_torch_file(pickled(tmp_path / "a.pt", call)).content
    assert isinstance(described, Described) and described.kind == "numpy.fromfile"
    for code in (
        b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.",
        b"\x80\x02cbuiltins\neval\nX\x01\x00\x00\x001\x85R.",
    ):
        with pytest.raises(UsageError):
            read_torch_file(pickled(tmp_path / "b.pt", code))


def test_a_pickle_cannot_change_the_classes_that_describe(tmp_path: Path) -> None:
    change = b"\x80\x02cenum\nEnum\n}X\x04\x00\x00\x00kindX\x07\x00\x00\x00changedsb."
    with pytest.raises(UsageError):
        read_torch_file(pickled(tmp_path / "a.pt", change))
    assert read_torch_file(pickled(tmp_path / "b.pt", b"\x80\x02cenum\nEnum\n)R.")).content.kind == "enum.Enum"


def test_an_index_joins_the_files_that_it_names(tmp_path: Path) -> None:
    whole = Model(Shape()).whole()
    names = sorted(whole)
    (tmp_path / "state").mkdir()
    parts = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, held in parts.items():
        write_safetensors(tmp_path / "state" / file, {name: whole[name] for name in held}, "BF16")
    index = {"weight_map": {name: file for file, held in parts.items() for name in held}}
    (tmp_path / "state" / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "state" / "optimizer.bin").write_bytes(b"")
    written = merge(tmp_path / "state", tmp_path / "merged.safetensors")
    assert same(read(tmp_path / "merged.safetensors")[0], whole)
    assert any("optimizer.bin" in note for note in written.notes)
    index["weight_map"][names[0]] = "../elsewhere"
    (tmp_path / "state" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert mentions(refused(tmp_path / "state"), "'../elsewhere'")


@pytest.mark.slow
@pytest.mark.parametrize("safe", [True, False])
def test_what_accelerate_saves_is_read(tmp_path: Path, safe: bool) -> None:
    torch = need_torch()
    need_module("engines", "accelerate")
    from accelerate import Accelerator

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    accelerator = Accelerator(cpu=True)
    prepared, _ = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.save_state(str(tmp_path / "state"), safe_serialization=safe)
    written = merge(tmp_path / "state", tmp_path / "one.safetensors")
    found, _ = read(tmp_path / "one.safetensors")
    assert sorted(found) == sorted(prepared.state_dict())
    for name, tensor in prepared.state_dict().items():
        assert np.array_equal(found[name].view(np.float32), tensor.numpy())
    assert any("optimizer.bin" in note for note in written.notes)


def test_what_deepspeed_saves_up_to_zero_2_is_read_and_zero_3_is_refused(tmp_path: Path) -> None:
    torch = need_torch()
    folder = tmp_path / "state" / "pytorch_model"
    folder.mkdir(parents=True)
    path = folder / "mp_rank_00_model_states.pt"
    weights = {"layer.weight": torch.randn(4, 3)}
    shapes = [{"layer.weight": torch.Size([4, 3])}]
    torch.save({"module": weights, "param_shapes": shapes, "ds_version": "0.19.8", "dp_world_size": 2}, path)
    for rank in range(2):
        (folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"")
        (folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"")
    written = merge(tmp_path / "state", tmp_path / "merged.safetensors")
    found, _ = read(tmp_path / "merged.safetensors")
    assert found["layer.weight"].view(np.float32).tolist() == weights["layer.weight"].tolist()
    assert any(note.startswith("optimizer state:") for note in written.notes)
    torch.save({"module": {"layer.weight": torch.empty(0)}}, path)
    assert mentions(refused(tmp_path / "state"), path, "zero_to_fp32.py")


def test_the_sharded_weights_of_fsdp_are_read_by_their_own_names(tmp_path: Path) -> None:
    torch = need_torch()
    weights = {"layer.weight": torch.randn(4, 3), "layer.bias": torch.randn(4)}
    (tmp_path / "state").mkdir()
    dcp_save(tmp_path / "state" / "pytorch_model_fsdp_0", {"model": weights})
    merge(tmp_path / "state", tmp_path / "one.safetensors")
    found, _ = read(tmp_path / "one.safetensors")
    assert {name: array.view(np.float32).tolist() for name, array in found.items()} == {
        name: tensor.tolist() for name, tensor in weights.items()
    }


def test_members_of_enumerations_are_read_as_python_3_11_0_to_3_11_3_saves_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = need_torch()
    from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

    for kind in (_MEM_FORMAT_ENCODING, signal.Signals):
        monkeypatch.setitem(copyreg.dispatch_table, kind, lambda member: (getattr, (type(member), member.name)))
    (tmp_path / "state").mkdir()
    dcp_save(tmp_path / "state" / "pytorch_model_fsdp_0", {"model": {"bias": torch.ones(4)}})
    merge(tmp_path / "state", tmp_path / "one.safetensors")
    assert read(tmp_path / "one.safetensors")[0]["bias"].view(np.float32).tolist() == [1.0] * 4
    torch.save({"model": {"bias": torch.ones(4)}, "exit": signal.SIGTERM}, tmp_path / "whole.pt")
    assert isinstance(read_torch_file(tmp_path / "whole.pt").content["exit"], Described)
