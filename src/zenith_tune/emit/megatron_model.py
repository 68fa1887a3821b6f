"""A model as options of Megatron-LM, by their names with underscores; `True` is a switch.

Names as in Megatron-LM main of 2026-08-22: megatron/training/arguments.py, and the fields of TransformerConfig.
"""

from __future__ import annotations

from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.presets.megatron_lm.options import Options


def model_options(model: ModelSpec, seq_len: int) -> Options:
    """Return the options that build the model, the vocabulary left to the tokenizer."""
    sizes: Options = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "ffn_hidden_size": model.ffn_hidden,
        "num_attention_heads": model.num_heads,
    }
    return {**sizes, **_attention(model), **_positions(model, seq_len), **_layers(model), **_experts(model)}


def model_notes(model: ModelSpec) -> list[str]:
    """Return what of the model no option here says."""
    notes = [f"the tokenizer gives the vocabulary: {model.vocab} here (--vocab-size where it does not)"]
    if not model.num_positions:
        notes.append("positions are taken to be rotary: add --rotary-base and scaling as the model has them")
    if model.num_experts:
        notes.append("the router's scores, groups and balancing are Megatron's defaults: add the model's own")
    if not model.gated_mlp:
        notes.append("the activation is Megatron's GeLU: add --squared-relu or what else the model has")
    if model.attention_sinks:
        notes.append("attention has sinks: add the model's windows, and its gate's offset and clamp")
    if model.embedding_norm:
        notes.append("the norm behind the embedding is none of Megatron's options")
    return notes


def _attention(model: ModelSpec) -> Options:
    if model.latent_attention:
        return _latent(model)
    options = Options()
    if model.num_kv_heads != model.num_heads:
        options |= {"group_query_attention": True, "num_query_groups": model.num_kv_heads}
    if model.head_dim * model.num_heads != model.hidden:
        options["kv_channels"] = model.head_dim
    switches = {
        "add_qkv_bias": model.qkv_bias and not model.linear_bias,
        "qk_layernorm": model.qk_norm,
    }
    options |= _on(switches)
    return {**options, "softmax_type": "learnable"} if model.attention_sinks else options


def _latent(model: ModelSpec) -> Options:
    mla = model.latent_attention
    assert mla is not None
    query: Options = {"q_lora_rank": mla.q_rank} if mla.q_rank else {}
    return {
        "multi_latent_attention": True,
        **query,
        "kv_lora_rank": mla.kv_rank,
        "qk_head_dim": mla.qk_nope_dim,
        "qk_pos_emb_head_dim": mla.qk_rope_dim,
        "v_head_dim": mla.v_dim,
        # The norms of its low-rank projections.
        "qk_layernorm": True,
    }


def _positions(model: ModelSpec, seq_len: int) -> Options:
    kind = "learned_absolute" if model.num_positions else "rope"
    return {"position_embedding_type": kind, "max_position_embeddings": max(model.num_positions, seq_len)}


def _layers(model: ModelSpec) -> Options:
    norm: Options = {"normalization": "LayerNorm" if model.norm_bias else "RMSNorm"}
    switches = {
        # The models with sinks are gpt-oss and its kin.
        "quick_geglu": model.gated_mlp and model.attention_sinks,
        "swiglu": model.gated_mlp and not model.attention_sinks,
        "disable_bias_linear": not model.linear_bias,
        "untie_embeddings_and_output_weights": not model.tied_embeddings,
    }
    further: Options = {"mtp_num_layers": model.num_mtp_layers} if model.num_mtp_layers else {}
    return {**norm, **_on(switches), **further}


def _experts(model: ModelSpec) -> Options:
    if not model.num_experts:
        return {}
    options: Options = {
        "num_experts": model.num_experts,
        "moe_router_topk": model.top_k,
        "moe_ffn_hidden_size": model.moe_ffn_hidden,
    }
    if model.shared_ffn_hidden:
        options["moe_shared_expert_intermediate_size"] = model.shared_ffn_hidden
        options |= _on({"moe_shared_expert_gate": model.shared_gate})
    if model.num_dense_layers:
        options["moe_layer_freq"] = f"([0]*{model.num_dense_layers}+[1]*{model.num_moe_layers})"
    return options


def _on(switches: dict[str, bool]) -> Options:
    return {name: True for name, is_on in switches.items() if is_on}
