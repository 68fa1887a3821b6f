"""Models of transformers, made small, compute the same after a way through Megatron's names and layouts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.shard_files import need_torch
from tests.checkpoint.test_refused_shards import refused
from tests.mentions import mentions
from tests.requirements import need_module
from zenith_checkpoint.convert import Names, Target, merge, reshard
from zenith_checkpoint.model_shape import ModelShape
from zenith_checkpoint.output_place import Format
from zenith_tune.describe.model_catalog import catalog_model
from zenith_tune.errors import UsageError

BASE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 37,
    "head_dim": 8,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {},
    "qwen2": {"head_dim": 4},
    "qwen3": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 8, "num_experts_per_tok": 2, "norm_topk_prob": True},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "attn_pdrop": 0.0},
    "gpt_oss": {"num_local_experts": 4, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
}


def build(folder: Path, model_type: str) -> Any:
    """Save a random model of transformers, every weight of it with values of its own; return it."""
    torch = need_torch()
    need_module("checkpoint", "transformers")
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    base = {"vocab_size": 37} if model_type == "gpt2" else BASE
    model = make(AutoConfig.for_model(model_type, **{**base, **MODELS[model_type]}))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape) * 0.3 + 0.1)
    model.eval().save_pretrained(folder)
    return model


def logits(model: Any) -> Any:
    torch = need_torch()
    with torch.no_grad():
        return model(torch.arange(12).reshape(1, 12) * 5 % 37).logits


@pytest.mark.slow
@pytest.mark.parametrize("model_type", MODELS)
def test_a_model_computes_the_same_after_megatron_names_and_ranks(tmp_path: Path, model_type: str) -> None:
    model = build(tmp_path / "hf", model_type)
    from transformers import AutoModelForCausalLM

    is_mixture = "experts" in str(MODELS[model_type])
    for sequential, kind in ((False, Format.MEGATRON), (True, Format.MEGATRON), (False, Format.TORCH_DIST)):
        ep = 2 if is_mixture and kind is Format.MEGATRON else 1
        target = Target(tp=2, pp=2, ep=ep, format=kind, sequential_experts=sequential)
        place = tmp_path / f"{kind.value}-{sequential}"
        reshard(tmp_path / "hf", place, target)
        back = tmp_path / f"back-{kind.value}-{sequential}"
        shape = ModelShape(head_dim=MODELS[model_type].get("head_dim", 8), vocab=37)
        merge(place, back, shape, names=Names.HF, config=tmp_path / "hf" / "config.json")
        loaded, report = AutoModelForCausalLM.from_pretrained(back, output_loading_info=True)
        assert not report["missing_keys"] and not report["unexpected_keys"]
        assert logits(loaded.eval()).equal(logits(model))


@pytest.mark.slow
def test_a_folder_of_transformers_is_padded_for_megatron_and_cut_back(tmp_path: Path) -> None:
    build(tmp_path / "hf", "qwen3")
    torch = need_torch()
    written = reshard(tmp_path / "hf", tmp_path / "new", Target(tp=2, pp=1))
    path = tmp_path / "new" / "release" / "mp_rank_01" / "model_optim_rng.pt"
    assert (
        written.paths[1] == path and (tmp_path / "new" / "latest_checkpointed_iteration.txt").read_text() == "release"
    )
    weights = torch.load(path, weights_only=False)["model"]
    assert weights["embedding.word_embeddings.weight"].shape == (128, 16)
    assert weights["decoder.layers.0.self_attention.linear_qkv.weight"].shape == (32, 16)


@pytest.mark.slow
def test_weights_that_no_rule_knows_are_refused(tmp_path: Path) -> None:
    torch = need_torch()
    build(tmp_path / "hf", "llama")
    from safetensors.torch import load_file, save_file

    path = tmp_path / "hf" / "model.safetensors"
    save_file({**load_file(path), "model.layers.0.mlp.extra_proj.weight": torch.ones(2, 2)}, path)
    with pytest.raises(UsageError) as error:
        reshard(tmp_path / "hf", tmp_path / "new", Target(tp=1, pp=1))
    assert mentions(str(error.value), "'model.layers.0.mlp.extra_proj.weight'")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_gpt2_as_it_is_published_has_names_in_both_directions(tmp_path: Path) -> None:
    torch = need_torch()
    need_module("checkpoint", "transformers")
    model = build(tmp_path / "hf", "gpt2")
    from safetensors.torch import load_file, save_file

    path = tmp_path / "hf" / "model.safetensors"
    published = {name.removeprefix("transformer."): each for name, each in load_file(path).items()}
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64).tril() for layer in range(2)}
    save_file({**published, **masks}, path)
    merge(tmp_path / "hf", tmp_path / "megatron.safetensors", names=Names.MEGATRON)
    ours = load_file(tmp_path / "megatron.safetensors")
    assert ours["embedding.position_embeddings.weight"].shape == (64, 32)
    fused = model.state_dict()["transformer.h.1.attn.c_attn.weight"].T  # queries, keys, values of 4 heads of 8
    first = torch.cat([fused[start : start + 8] for start in (0, 32, 64)])
    assert ours["decoder.layers.1.self_attention.linear_qkv.weight"][:24].equal(first)
    reshard(tmp_path / "hf", tmp_path / "ranks", Target(tp=2, pp=2))
    merge(tmp_path / "ranks", tmp_path / "back.safetensors", ModelShape(heads=4, vocab=37), names=Names.HF)
    back = load_file(tmp_path / "back.safetensors")
    assert {name.removeprefix("transformer.") for name in back} == published.keys()
    assert all(back[f"transformer.{name}"].equal(each) for name, each in published.items())


@pytest.mark.parametrize("names", Names)
def test_names_that_nobody_knows_are_not_said_to_be_converted(tmp_path: Path, names: Names) -> None:
    torch = need_torch()
    need_module("checkpoint", "safetensors")
    from safetensors.torch import save_file

    (tmp_path / "in").mkdir()
    held = {f"backbone.layers.{layer}.block.{part}.weight": torch.ones(4, 4) for layer in range(2) for part in "ab"}
    for place, weights in {"in/model.safetensors": held, "pytorch_model_tp_0_pp_0.safetensors": held}.items():
        save_file(weights, tmp_path / place)
    for folder in (tmp_path / "in", tmp_path):
        with pytest.raises(UsageError, match=r"GPT-2, Llama") as error:
            merge(folder, tmp_path.parent / f"{tmp_path.name}.safetensors", ModelShape(any_model=True), names=names)
        assert mentions(error.value, folder)
    assert not (tmp_path.parent / f"{tmp_path.name}.safetensors").exists()


def test_a_model_with_other_attention_is_called_unknown_and_not_asked_for_its_heads(tmp_path: Path) -> None:
    torch = need_torch()
    need_module("checkpoint", "safetensors")
    from safetensors.torch import save_file

    (tmp_path / "deepseek").mkdir()
    latent = ("q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")
    held = {f"model.layers.0.self_attn.{name}.weight": torch.ones(4, 4) for name in latent}
    save_file({"model.embed_tokens.weight": torch.ones(8, 4), **held}, tmp_path / "deepseek" / "model.safetensors")
    shape = ModelShape.of_model(catalog_model("deepseek-v3"))
    with pytest.raises(UsageError) as error:
        reshard(tmp_path / "deepseek", tmp_path / "new", Target(tp=1, pp=1), shape)
    assert mentions(error.value, "k_proj", "GPT-2") and "--model" not in str(error.value)


def test_a_model_of_which_no_layer_is_known_is_not_written_for_megatron(tmp_path: Path) -> None:
    torch = need_torch()
    need_module("checkpoint", "safetensors")
    from safetensors.torch import save_file

    (tmp_path / "hf").mkdir()
    names = ("word_embeddings.weight", "h.0.self_attention.weight", "ln_f.weight")
    save_file({f"transformer.{name}": torch.ones(4, 4) for name in names}, tmp_path / "hf" / "model.safetensors")
    with pytest.raises(UsageError) as error:
        reshard(tmp_path / "hf", tmp_path / "new", Target(tp=1, pp=1))
    assert mentions(str(error.value), tmp_path / "hf")
    assert not (tmp_path / "new").exists()


def test_a_hostile_file_of_transformers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "pytorch_model.bin").write_bytes(b"cposix\nmkdir\n(S'was-run'\ntR.")
    assert mentions(refused(tmp_path / "hf"), tmp_path / "hf" / "pytorch_model.bin")
