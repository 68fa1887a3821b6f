from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.reference import OLD, Model, Shape
from tests.checkpoint.shard_files import need_torch, read, same, to_torch, write_safetensors, write_shards
from tests.command_runs import Run
from tests.requirements import need_module

Forked = Callable[..., subprocess.CompletedProcess[str]]

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 11,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


@pytest.fixture
def model() -> Model:
    return Model(Shape())


def test_a_config_shows_the_vocabulary_and_the_heads(checkpoint: Run, tmp_path: Path, model: Model) -> None:
    write_shards(tmp_path / "old", model, 2, 2)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model_options = ["--model", "config.json", "--vocab-divisible-by", "2"]
    done = checkpoint("merge", "old", "--output", "one.safetensors", *model_options)
    assert done.code == 0, done.err
    total, vocabulary, layer, written = done.out.splitlines()
    assert re.findall(r"[\d.]+", total) == ["2", "2", "23", "4", "3.4"]
    assert vocabulary.startswith("vocabulary: ") and re.findall(r"\d+", vocabulary) == ["11", "1"]
    assert (layer, written) == ("output layer: own", "written: one.safetensors")
    assert same(read(tmp_path / "one.safetensors")[0], model.whole())
    done = checkpoint("reshard", "old", "--tp", "4", "--pp", "1", *model_options)
    assert done.code == 0, done.err
    assert re.search(r"^query groups: .*0\.16", done.out, re.MULTILINE)
    found, _ = read(tmp_path / "old-tp4-pp1" / "pytorch_model_tp_3_pp_0.safetensors")
    assert sorted(found) == sorted(model.shard(3, 4, 0, 1))


def test_json_is_one_object(checkpoint: Run, tmp_path: Path, model: Model) -> None:
    write_shards(tmp_path / "old", model, 1, 2)
    done = checkpoint("merge", "old", "--output", "one.safetensors", "--json")
    written = json.loads(done.out)
    assert written["num_tensors"] == 23 and written["paths"] == ["one.safetensors"]


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["merge", "nowhere", "--output", "one.bin"], ["'nowhere'"]),
        (["merge", "old"], ["Missing option '--output'"]),
        (["merge", "old", "--output", "old/one.bin"], ["old/one.bin", "own folder"]),
        (["reshard", "old", "--tp", "0", "--pp", "1"], ["'--tp'"]),
        (["reshard", "old", "--tp", "100", "--pp", "100"], ["4096 shards", "100 x 100"]),
        (["reshard", "old", "--tp", "1", "--pp", "2", "--layers-per-stage", "a,b"], ["--layers-per-stage", "9,9,8"]),
        (["merge", "old", "--output", "one.bin", "--model", "no-such"], ["unknown model 'no-such'"]),
    ],
)
def test_a_mistake_is_one_line(
    checkpoint: Run, tmp_path: Path, model: Model, args: list[str], parts: list[str]
) -> None:
    write_shards(tmp_path / "old", model, 1, 1)
    done = checkpoint(*args)
    assert done.code == 2 and done.err.count("\n") == 1, done.err
    assert all(part in done.err for part in parts), done.err
    assert list(tmp_path.iterdir()) == [tmp_path / "old"]


def test_help_does_not_load_torch(zenithtune: Forked, tmp_path: Path) -> None:
    need_module("engines", "zenith_checkpoint")
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "torch.py").write_text("raise ImportError('hidden')")
    env = {"PYTHONPATH": str(tmp_path / "hidden")}
    assert "checkpoint" in zenithtune("--help", env=env).stdout
    assert zenithtune("checkpoint", "merge", "--help", env=env).returncode == 0


def test_nested_shards_are_written_nested_again_with_what_stands_beside_the_weights(
    checkpoint: Run, tmp_path: Path
) -> None:
    torch = need_torch()
    model = Model(Shape(names=OLD, tied=True))
    write_shards(tmp_path / "old", model, 2, 1, "bin", nested=True)
    done = checkpoint("reshard", "old", "--tp", "1", "--pp", "2", "--vocab", "11", "--output", "new")
    assert done.code == 0, done.err
    last = torch.load(tmp_path / "new" / "pytorch_model_tp_0_pp_1.bin", weights_only=True)
    assert (last["iteration"], last["checkpoint_version"]) == (7, 3.0)
    assert sorted(last["model"]) == ["language_model", "word_embeddings_for_head"]
    assert "layers.0.mlp.dense_h_to_4h.weight" in last["model"]["language_model"]["encoder"]


def test_state_that_is_no_weight_is_left_out_and_said(checkpoint: Run, tmp_path: Path, model: Model) -> None:
    torch = need_torch()
    (tmp_path / "old").mkdir()
    weights = {name: to_torch(array, "BF16") for name, array in model.shard(0, 1, 0, 1).items()}
    weights["decoder.layers.0.self_attention.linear_qkv._extra_state"] = None
    shard = {"model": weights, "optimizer": {"step": torch.zeros(1)}, "iteration": 3}
    torch.save(shard, tmp_path / "old" / "pytorch_model_tp_0_pp_0.bin")
    done = checkpoint("merge", "old", "--output", "one.safetensors")
    (line,) = (line for line in done.out.splitlines() if line.startswith("left out: 2 "))
    assert "decoder.layers.0.self_attention.linear_qkv._extra_state" in line
    assert same(read(tmp_path / "one.safetensors")[0], model.whole(12))


def test_the_safetensors_library_and_torch_read_what_was_merged(checkpoint: Run, tmp_path: Path, model: Model) -> None:
    need_torch()
    need_module("checkpoint", "safetensors")
    from safetensors.torch import load_file, save_file

    (tmp_path / "old").mkdir()
    for rank in range(2):
        weights = {name: to_torch(array, "BF16") for name, array in model.shard(rank, 2, 0, 1).items()}
        save_file(weights, tmp_path / "old" / f"pytorch_model_tp_{rank}_pp_0.safetensors", {"by": "the library"})
    assert checkpoint("merge", "old", "--output", "one.safetensors", "--vocab", "11").code == 0
    for name, tensor in load_file(tmp_path / "one.safetensors").items():
        assert tensor.equal(to_torch(model.whole()[name], "BF16"))


def test_types_of_all_widths_lie_aligned_in_one_file(checkpoint: Run, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    names = {"decoder.layers.0.a": "U8", "decoder.layers.0.b": "F32"}
    header, body = {}, b""
    for name, dtype in names.items():
        data = np.arange(3, dtype=np.uint8 if dtype == "U8" else np.float32).tobytes()
        header[name] = {"dtype": dtype, "shape": [3], "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    path = tmp_path / "old" / "pytorch_model_tp_0_pp_0.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)
    assert checkpoint("merge", "old", "--output", "one.safetensors").code == 0
    data = (tmp_path / "one.safetensors").read_bytes()
    merged = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert merged["decoder.layers.0.b"]["data_offsets"] == [0, 12]
    assert read(tmp_path / "one.safetensors")[0]["decoder.layers.0.a"].tolist() == [0, 1, 2]


def test_a_weight_of_no_known_stage_is_refused_in_a_pipeline(checkpoint: Run, tmp_path: Path, model: Model) -> None:
    (tmp_path / "old").mkdir()
    weights = {**model.shard(0, 1, 0, 1), "adapter.weight": np.zeros(2, np.uint16)}
    write_safetensors(tmp_path / "old" / "pytorch_model_tp_0_pp_0.safetensors", weights, "BF16")
    done = checkpoint("reshard", "old", "--tp", "1", "--pp", "2")
    assert done.code == 2 and "'adapter.weight'" in done.err and "2 stages" in done.err
