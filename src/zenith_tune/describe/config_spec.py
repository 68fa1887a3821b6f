"""The shape of the model that a config.json from the Hugging Face hub describes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from zenith_tune.describe.config_json import HEADS, LAYERS, ConfigJson, too_deep
from zenith_tune.describe.expert_shape import expert_fields
from zenith_tune.describe.families import FAMILIES, GATED, KEYS, PLAIN, UNKNOWN, Family
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec
from zenith_tune.describe.needed_keys import NeededKeys

HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "hidden_dim")
VOCAB = ("vocab_size", "padded_vocab_size")
FFN = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")
POSITIONS = ("n_positions", "max_position_embeddings", "max_seq_len")
ACTIVATION = ("hidden_act", "activation_function", "hidden_activation", "activation")
OTHERWISE = "or name a model of the catalog, such as llama3-8b"
OTHER_LAYERS = ("mamba", "ssm_", "linear_num_", "hybrid_", "lru_", "time_mix", "state_size", "rwkv")
"""Beginnings of keys that tell of layers which are neither attention nor feed-forward."""


def model_spec_from_config(config: dict[str, Any], source: str, otherwise: str = OTHERWISE) -> ModelSpec:
    """Return the shape that a config.json describes; `source` names it in errors and becomes the model's name."""
    whole = ConfigJson(values=config, source=source, otherwise=otherwise)
    try:
        part = whole.language_part() or whole
        return _spec(replace(part, values={**_inherited(whole, part), **part.values}))
    except RecursionError:
        raise too_deep(whole) from None


def _inherited(whole: ConfigJson, part: ConfigJson) -> dict[str, Any]:
    """Return what a nested language model takes from the whole where it does not say it itself."""
    keys = ("model_type", "tie_word_embeddings")
    return {} if part.values is whole.values else {key: whole.values[key] for key in keys if key in whole.values}


def _spec(config: ConfigJson) -> ModelSpec:
    _refuse_other_kinds(config)
    family, keys = _family(config), NeededKeys(config=config)
    hidden, num_experts = keys.need(*HIDDEN), config.num_experts()
    fields = _attention_fields(keys, hidden)
    experts = expert_fields(keys, family, num_experts) if num_experts else {}
    has_dense_layers = not experts or experts["num_dense_layers"] > 0
    fields |= experts | {
        "num_layers": keys.need(*LAYERS),
        "vocab": keys.need(*VOCAB),
        "ffn_hidden": _ffn(keys, family, hidden, is_needed=has_dense_layers),
        "gated_mlp": _gated(keys, family),
        "num_positions": keys.need(*POSITIONS) if family.learned_positions else 0,
        "num_mtp_layers": config.size("num_nextn_predict_layers"),
    }
    keys.refuse_missing()
    parts = {part: getattr(family, part) for part in ("norm_bias", "attention_sinks", "embedding_norm", *KEYS)}
    spec = ModelSpec(name=config.source, hidden=hidden, **parts, **fields)
    _refuse_contradictions(spec, config)
    return spec


def _attention_fields(keys: NeededKeys, hidden: int) -> dict[str, Any]:
    heads = keys.need(*HEADS)
    return {
        "num_heads": heads,
        "num_kv_heads": keys.config.query_groups() or heads,
        "head_dim": _head_dim(keys, hidden, heads),
        "latent_attention": _latent_attention(keys),
    }


def _family(config: ConfigJson) -> Family:
    """Return the family's parts, with what the config itself says of them."""
    family = FAMILIES.get(str(config.values.get("model_type")), UNKNOWN)
    said: dict[str, Any] = {
        part: value for part, keys in KEYS.items() if (value := _first_flag(config, keys)) is not None
    }
    if said.get("qkv_bias") and config.flag("mlp_bias"):
        said["linear_bias"] = True
    return replace(family, **(said | _mpt_parts(config)))


def _first_flag(config: ConfigJson, keys: tuple[str, ...]) -> bool | None:
    return next((flag for key in keys if (flag := config.flag(key)) is not None), None)


def _mpt_parts(config: ConfigJson) -> dict[str, Any]:
    """Return what MPT says in words of its own: that it has biases, and positions that are neither ALiBi nor rotary."""
    biases = {"linear_bias": True, "norm_bias": True} if config.flag("no_bias") is False else {}
    attention = config.values.get("attn_config")
    learned = isinstance(attention, dict) and attention.get("alibi") is False and not attention.get("rope")
    return biases | ({"learned_positions": True} if learned else {})


def _gated(keys: NeededKeys, family: Family) -> bool:
    if family.gated_mlp is not None:
        return family.gated_mlp
    activation = next((value for key in ACTIVATION if (value := keys.config.values.get(key))), None)
    if activation not in (*GATED, *PLAIN):
        keys.missing.append(f"a model_type that is known, or {ACTIVATION[0]}")
    return activation in GATED


def _ffn(keys: NeededKeys, family: Family, hidden: int, *, is_needed: bool) -> int:
    """Return the width of a dense layer, which a mixture of experts without one need not say."""
    names = (family.dense_ffn_key, *FFN)
    if not is_needed:
        return keys.config.count(*names) or 0
    ratio = keys.config.count("expansion_ratio") or family.ffn_ratio
    return keys.need(*names, otherwise=ratio * hidden)


def _head_dim(keys: NeededKeys, hidden: int, heads: int) -> int:
    mla_dim = keys.config.count("v_head_dim") if keys.config.count("kv_lora_rank") else None
    if mla_dim:
        return mla_dim
    fits = heads and hidden % heads == 0
    return keys.need(*HEAD_DIM, otherwise=hidden // heads if fits else int(not heads))


def _latent_attention(keys: NeededKeys) -> LatentAttention | None:
    kv_rank = keys.config.count("kv_lora_rank")
    if kv_rank is None:
        return None
    return LatentAttention(
        q_rank=keys.config.count("q_lora_rank") or 0,
        kv_rank=kv_rank,
        qk_nope_dim=keys.need("qk_nope_head_dim"),
        qk_rope_dim=keys.need("qk_rope_head_dim"),
        v_dim=keys.need("v_head_dim"),
    )


def _refuse_other_kinds(config: ConfigJson) -> None:
    """Raise for models that are no decoder-only transformers, whose parameters would be counted wrong."""
    if config.flag("is_encoder_decoder"):
        raise config.refuse(" must be a decoder-only model, but has is_encoder_decoder")
    key = next((key for key, value in config.values.items() if key.startswith(OTHER_LAYERS) and value), None)
    if key:
        raise config.refuse(f" must have layers of attention alone, but has {key}")


def _refuse_contradictions(spec: ModelSpec, config: ConfigJson) -> None:
    if spec.num_heads % spec.num_kv_heads:
        law = "attention heads must be a multiple of key-value heads"
        raise config.refuse(f": {law}, but got {spec.num_heads} and {spec.num_kv_heads}")
    if spec.top_k > spec.num_experts:
        law = "a token must go to at most as many experts as there are"
        raise config.refuse(f": {law}, but got {spec.top_k} of {spec.num_experts}")
    if spec.num_dense_layers > spec.num_layers:
        law = "dense layers must be at most all layers"
        raise config.refuse(f": {law}, but got {spec.num_dense_layers} of {spec.num_layers}")
