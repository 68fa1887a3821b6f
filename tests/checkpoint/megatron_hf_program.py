"""A model of transformers, loaded by Megatron Core after its weights were converted: both save their logits."""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import torch

from tests.engines.megatron_core.cuda_on_cpu import pretend_cuda
from zenith_checkpoint.convert import Target, reshard
from zenith_checkpoint.output_place import Format
from zenith_mimo.local_ranks import run_ranks

pretend_cuda()

from megatron.core import parallel_state as ps  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron.core.transformer.moe import moe_utils  # noqa: E402

moe_utils.te_general_gemm = None  # not set by 0.16 without Transformer Engine, and asked for nevertheless

LENGTH, PADDED = 12, 128
NORMS = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}


PLAIN: dict[str, Any] = {
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "use_cpu_initialization": True,
    "persist_layer_norm": False,
    "apply_rope_fusion": False,
    "bias_activation_fusion": False,
    "masked_softmax_fusion": False,
}


def build_gpt2(config: dict[str, Any]) -> Any:
    of_model = TransformerConfig(
        num_layers=config["n_layer"],
        hidden_size=config["n_embd"],
        num_attention_heads=config["n_head"],
        activation_func=functools.partial(torch.nn.functional.gelu, approximate="tanh"),
        layernorm_epsilon=config["layer_norm_epsilon"],
        **PLAIN,
    )
    return GPTModel(
        of_model,
        get_gpt_layer_local_spec(),
        vocab_size=PADDED,
        max_sequence_length=config["n_positions"],
        position_embedding_type="learned_absolute",
        share_embeddings_and_output_weights=True,
        parallel_output=False,
    ).eval()


def build(config: dict[str, Any], has_norms: bool) -> Any:
    if config["model_type"] == "gpt2":
        return build_gpt2(config)
    num_experts = config.get("num_local_experts") or config.get("num_experts")
    of_model = TransformerConfig(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config["num_key_value_heads"],
        kv_channels=config["head_dim"],
        ffn_hidden_size=config["intermediate_size"],
        moe_ffn_hidden_size=(config.get("moe_intermediate_size") or config["intermediate_size"])
        if num_experts
        else None,
        num_moe_experts=num_experts,
        moe_router_topk=config.get("num_experts_per_tok") or 2,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="allgather",
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        add_bias_linear=False,
        normalization="RMSNorm",
        layernorm_epsilon=config["rms_norm_eps"],
        qk_layernorm=has_norms,
        **PLAIN,
    )
    spec = get_gpt_layer_local_spec(
        num_experts=num_experts, moe_grouped_gemm=False, qk_layernorm=has_norms, normalization="RMSNorm"
    )
    return GPTModel(
        of_model,
        spec,
        vocab_size=PADDED,
        max_sequence_length=LENGTH,
        position_embedding_type="rope",
        rotary_base=config["rope_parameters"]["rope_theta"],
        share_embeddings_and_output_weights=bool(config["tie_word_embeddings"]),
        parallel_output=False,
    ).eval()


def local_name(name: str) -> str:
    """Return a weight's name in layers that are not Transformer Engine's."""
    for fused, own in NORMS.items():
        name = name.replace(fused, own)
    return name


def run(options: argparse.Namespace) -> None:
    ps.initialize_model_parallel(1, 1)
    model_parallel_cuda_manual_seed(1)
    place = options.folder / "megatron"
    reshard(options.folder / "hf", place, Target(tp=1, pp=1, format=Format.MEGATRON, sequential_experts=True))
    path = place / "release" / "mp_rank_00" / "model_optim_rng.pt"
    weights = {local_name(name): each for name, each in torch.load(path, weights_only=False)["model"].items()}
    has_norms = any("q_layernorm" in name for name in weights)
    model = build(json.loads((options.folder / "hf" / "config.json").read_text()), has_norms)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and all(name.endswith("_extra_state") for name in missing), (missing, unexpected)
    tokens = torch.arange(LENGTH).reshape(1, LENGTH) * 5 % 37
    mask = torch.ones(1, 1, LENGTH, LENGTH).triu(1).bool()
    with torch.no_grad():
        torch.save(model(tokens, torch.arange(LENGTH).reshape(1, LENGTH), mask), options.folder / "megatron.pt")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    codes = run_ranks(1, functools.partial(run, options), grace_s=10)
    if any(codes):
        raise SystemExit(f"error: ended with {codes}")


if __name__ == "__main__":
    main()
