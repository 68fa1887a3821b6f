"""Megatron's and transformers' folders by the command, to one another and back."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.checkpoint.reference import Model, Shape, Weights
from tests.checkpoint.shard_files import need_torch, read, same, write_safetensors, write_shards
from tests.checkpoint.test_sources import write_legacy
from tests.command_runs import Run

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 11,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def test_a_flipped_bit_is_one_line_and_exit_code_2(checkpoint: Run, tmp_path: Path) -> None:
    model = Model(Shape())
    write_shards(tmp_path / "old", model, 1, 1, "bin")
    path = tmp_path / "old" / "pytorch_model_tp_0_pp_0.bin"
    data = bytearray(path.read_bytes())
    data[data.index(model.whole(12)["decoder.layers.2.mlp.linear_fc1.weight"].tobytes()) + 5] ^= 16
    path.write_bytes(data)
    done = checkpoint("merge", "old", "--output", "one.safetensors")
    assert done.code == 2 and done.err.count("\n") == 1
    assert "pytorch_model_tp_0_pp_0.bin" in done.err and list(tmp_path.iterdir()) == [tmp_path / "old"]


@pytest.mark.parametrize("kind", ["megatron", "torch_dist", "safetensors"])
def test_a_run_of_megatron_is_taken_to_another_layout_and_format(checkpoint: Run, tmp_path: Path, kind: str) -> None:
    need_torch()
    model = Model(Shape(experts=4))
    write_legacy(tmp_path / "run", model, 2, 1, 2)
    ep = ["--ep", "4"] if kind == "megatron" else []
    options = ["--vocab", "11", "--vocab-divisible-by", "2", "--format", kind, *ep]
    done = checkpoint("reshard", "run", "--tp", "1", "--pp", "2", "--output", "new", *options)
    assert done.code == 0, done.err
    assert any(line.startswith("optimizer state:") for line in done.out.splitlines())
    if kind == "megatron":
        assert (tmp_path / "new" / "iter_0000020" / "mp_rank_00_001_003" / "model_optim_rng.pt").is_file()
    done = checkpoint("merge", "new", "--output", "one.safetensors", "--vocab", "11")
    assert done.code == 0, done.err
    assert same(read(tmp_path / "one.safetensors")[0], model.whole())


def write_llama(folder: Path) -> Weights:
    """Write a small Llama as transformers does; return its weights."""
    random = np.random.default_rng(0)
    shapes = {"embed_tokens": (11, 8), "norm": (8,)}
    for layer in range(2):
        start = f"layers.{layer}."
        projections = {"self_attn.q": (8, 8), "self_attn.k": (4, 8), "self_attn.v": (4, 8), "self_attn.o": (8, 8)}
        projections |= {"mlp.gate": (6, 8), "mlp.up": (6, 8), "mlp.down": (8, 6)}
        shapes |= {f"{start}{name}_proj": shape for name, shape in projections.items()}
        shapes |= {f"{start}{name}_layernorm": (8,) for name in ("input", "post_attention")}
    names = {f"model.{name}.weight": shape for name, shape in shapes.items()} | {"lm_head.weight": (11, 8)}
    weights = {name: random.integers(0, 2**14, shape, np.uint16) for name, shape in names.items()}
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", weights, "BF16")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return weights


def test_a_model_of_transformers_goes_to_megatron_and_comes_back(checkpoint: Run, tmp_path: Path) -> None:
    need_torch()
    weights = write_llama(tmp_path / "hf")
    done = checkpoint("reshard", "hf", "--tp", "2", "--pp", "2", "--output", "new")
    assert done.code == 0, done.err
    done = checkpoint("merge", "new", "--output", "back", "--names", "hf", "--model", "hf/config.json")
    assert done.code == 0, done.err
    assert same(read(tmp_path / "back" / "model.safetensors")[0], weights)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == CONFIG


def test_the_config_of_a_models_folder_goes_along_and_a_missing_one_is_said(checkpoint: Run, tmp_path: Path) -> None:
    write_llama(tmp_path / "hf")
    to_hf = ("--names", "hf", "--json")
    done = checkpoint("merge", "hf", "--output", "named.safetensors", "--names", "megatron")
    assert done.code == 0, done.err
    (tmp_path / "weights").mkdir()
    (tmp_path / "named.safetensors").rename(tmp_path / "weights" / "model.safetensors")
    done = checkpoint("merge", "weights", "--output", "back", "--model", "hf", *to_hf)
    assert json.loads((tmp_path / "back" / "config.json").read_text()) == CONFIG
    assert not any(note.startswith("config.json:") for note in json.loads(done.out)["notes"])
    done = checkpoint("merge", "weights", "--output", "bare", "--heads", "4", "--kv-heads", "2", *to_hf)
    assert not (tmp_path / "bare" / "config.json").exists()
    assert any(note.startswith("config.json:") for note in json.loads(done.out)["notes"])
