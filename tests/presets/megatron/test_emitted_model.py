from __future__ import annotations

import pytest

from tests.presets.targets import target
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.presets.megatron.emit import emit_megatron, model_flags, model_notes, model_options

# Arguments of Megatron-LM main of 2026-08-22 that build a model, as far as a ModelSpec says them.
KNOWN_OPTIONS = {
    *("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "group_query_attention"),
    *("num_query_groups", "kv_channels", "add_qkv_bias", "qk_layernorm", "softmax_type", "multi_latent_attention"),
    *("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "position_embedding_type"),
    *("max_position_embeddings", "normalization", "swiglu", "quick_geglu", "disable_bias_linear", "mtp_num_layers"),
    *("untie_embeddings_and_output_weights", "num_experts", "moe_router_topk", "moe_ffn_hidden_size"),
    *("moe_shared_expert_intermediate_size", "moe_shared_expert_gate", "moe_layer_freq"),
}
MODELS = [
    *("llama3-70b", "llama3.2-1b", "qwen2.5-7b", "qwen2-57b-a14b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt2"),
    *("deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b", "bloom-176b"),
]


@pytest.mark.parametrize("name", MODELS)
def test_no_option_is_one_that_megatron_does_not_know(name: str) -> None:
    assert model_options(load_model(name), 4096).keys() <= KNOWN_OPTIONS


def test_llama3_70b_is_written_as_in_its_report() -> None:
    assert model_flags(target(model=load_model("llama3-70b"))) == [
        "--num-layers 80",
        "--hidden-size 8192",
        "--ffn-hidden-size 28672",
        "--num-attention-heads 64",
        "--group-query-attention",
        "--num-query-groups 8",
        "--position-embedding-type rope",
        "--max-position-embeddings 8192",
        "--normalization RMSNorm",
        "--swiglu",
        "--disable-bias-linear",
        "--untie-embeddings-and-output-weights",
        "--vocab-size 128256",
    ]


def test_deepseek_v3_has_latent_attention_dense_layers_first_and_mtp() -> None:
    options = model_options(load_model("deepseek-v3"), 4096)
    latent = {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_head_dim": 128,
        "qk_pos_emb_head_dim": 64,
        "v_head_dim": 128,
    }
    assert options.items() >= latent.items()
    assert options["multi_latent_attention"] is True and "group_query_attention" not in options
    assert options["moe_layer_freq"] == "([0]*3+[1]*58)"
    assert (options["num_experts"], options["moe_router_topk"], options["moe_ffn_hidden_size"]) == (256, 8, 2048)
    assert (options["moe_shared_expert_intermediate_size"], options["mtp_num_layers"]) == (2048, 1)


def test_a_pattern_of_layers_survives_the_shell() -> None:
    assert "--moe-layer-freq '([0]*3+[1]*58)'" in emit_megatron(target(model=load_model("deepseek-v3"), ep=8)).text


def test_gpt2_has_learned_positions_biases_and_tied_tables() -> None:
    options = model_options(load_model("gpt2"), 1024)
    assert (options["position_embedding_type"], options["max_position_embeddings"]) == ("learned_absolute", 1024)
    assert options["normalization"] == "LayerNorm"
    assert not {"swiglu", "disable_bias_linear", "untie_embeddings_and_output_weights"} & options.keys()


def test_heads_that_are_not_a_share_of_the_hidden_size_say_theirs() -> None:
    assert model_options(load_model("qwen3-30b-a3b"), 4096)["kv_channels"] == 128
    assert "kv_channels" not in model_options(load_model("llama3-8b"), 4096)


def test_the_gate_of_gpt_oss_is_its_own() -> None:
    options = model_options(load_model("gpt-oss-20b"), 4096)
    assert options["quick_geglu"] is True and "swiglu" not in options
    assert options["softmax_type"] == "learnable"
    assert any("offset and clamp" in note for note in model_notes(load_model("gpt-oss-20b")))
    assert any("--squared-relu" in note for note in model_notes(load_model("nemotron4-15b")))


def test_what_no_option_says_is_noted() -> None:
    notes = emit_megatron(target(model=load_model("mixtral-8x7b"), ep=8)).notes
    for part in ("vocabulary: 32000", "--rotary-base", "router"):
        assert any(part in note for note in notes), part
