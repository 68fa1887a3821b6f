"""The shape of the model that a config.json from the Hugging Face hub describes."""

from __future__ import annotations

import functools
import reprlib
from dataclasses import dataclass, replace
from typing import Any

from zenith_tune.describe.catalog import read_catalog
from zenith_tune.describe.config_json import HEADS, LAYERS, ConfigJson
from zenith_tune.describe.model_spec import LatentAttention, ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the models of one family have in common; the defaults are Llama's."""

    gated_mlp: bool | None = True
    """None where the activation decides."""
    tied_embeddings: bool = False
    """The default where the config has no tie_word_embeddings."""
    norm_bias: bool = False
    linear_bias: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    attention_sinks: bool = False
    embedding_norm: bool = False
    learned_positions: bool = False
    ffn_ratio: int = 0
    """Width of the feed-forward part over the hidden size where the config does not say it; 0 where it must."""
    router_bias: bool = False
    shared_gate: bool = False
    shared_expert: bool = False
    """One shared expert as wide as the others, which no key of the config states."""
    dense_ffn_key: str = "intermediate_size"
    """The key of a dense layer's width in a mixture of experts."""


KEYS = {
    "tied_embeddings": ("tie_word_embeddings",),
    "linear_bias": ("use_bias", "bias"),
    "qkv_bias": ("qkv_bias", "add_qkv_bias", "use_qkv_bias", "attention_bias"),
    "qk_norm": ("use_qk_norm", "qk_layernorm"),
}
"""Keys by which a config overrides its family."""

GATED = ("silu", "swish", "swiglu", "geglu", "reglu", "glu")
PLAIN = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "squared_relu")
"""Activations by which a family that is not listed has three matrices in its feed-forward part, or two."""


TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "num_selected_experts")
WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size")
NUM_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
STEPS = ("decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period")


def expert_fields(config: ConfigJson, family: Family, num_experts: int) -> dict[str, Any]:
    """Return the fields of ModelSpec that describe a mixture of experts."""
    width = config.need(*WIDTH)
    shared = config.count(*SHARED_WIDTH)
    if shared is None:
        shared = width * (max(config.size(key) for key in NUM_SHARED) or int(family.shared_expert))
    return {
        "num_experts": num_experts,
        "top_k": config.need(*TOP_K),
        "moe_ffn_hidden": width,
        "shared_ffn_hidden": shared,
        "shared_gate": family.shared_gate,
        "router_bias": family.router_bias,
        "num_dense_layers": num_dense_layers(config),
    }


def num_dense_layers(config: ConfigJson) -> int:
    """Return how many layers without experts come first; a config that has others among the rest is refused."""
    for key in STEPS:
        if config.size(key, default=1) != 1:
            raise _mixed(config, key)
    listed = config.values.get("mlp_only_layers") or []
    if not isinstance(listed, list) or listed != list(range(len(listed))):
        raise _mixed(config, "mlp_only_layers")
    pattern = config.values.get("moe_layer_freq")
    steps = [str(step) for step in pattern] if isinstance(pattern, list) else ["1" if pattern is None else str(pattern)]
    if steps != sorted(steps) or not {*steps} <= {"0", "1"}:
        raise _mixed(config, "moe_layer_freq")
    return max(config.size("first_k_dense_replace"), len(listed), steps.count("0"))


def _mixed(config: ConfigJson, key: str) -> Exception:
    return config.refuse(f": {key} must name leading dense layers only, but is {reprlib.repr(config.values.get(key))}")


HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model", "hidden_dim")
VOCAB = ("vocab_size", "padded_vocab_size")
FFN = ("intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim")
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")
POSITIONS = ("n_positions", "max_position_embeddings", "max_seq_len")
ACTIVATION = ("hidden_act", "activation_function", "hidden_activation", "activation")
OTHERWISE = "or name a model of the catalog, such as llama3-8b"
OTHER_LAYERS = ("mamba", "ssm_", "linear_num_", "hybrid_", "lru_", "time_mix", "state_size", "rwkv")
"""Prefixes of keys that only models with other layers than attention and feed-forward have."""


def model_spec_from_config(config: dict[str, Any], source: str) -> ModelSpec:
    """Return the shape that a config.json describes; `source` names it in errors and becomes the model's name."""
    part = ConfigJson(values=config, source=source, otherwise=OTHERWISE).language_part()
    inherited: dict[str, Any] = {key: config[key] for key in ("model_type", "tie_word_embeddings") if key in config}
    return _spec(replace(part, values={**inherited, **part.values}))


def _spec(config: ConfigJson) -> ModelSpec:
    _refuse_other_kinds(config)
    family, hidden, num_experts = _family(config), config.need(*HIDDEN), config.num_experts()
    heads = config.need(*HEADS)
    experts = expert_fields(config, family, num_experts) if num_experts else {}
    has_dense_layers = not experts or experts["num_dense_layers"] > 0
    fields: dict[str, Any] = experts | {
        "num_heads": heads,
        "num_kv_heads": config.query_groups() or heads,
        "head_dim": _head_dim(config, hidden, heads),
        "latent_attention": _latent_attention(config),
        "num_layers": config.need(*LAYERS),
        "vocab": config.need(*VOCAB),
        "ffn_hidden": _ffn(config, family, hidden, is_needed=has_dense_layers),
        "gated_mlp": _gated(config, family),
        "num_positions": config.need(*POSITIONS) if family.learned_positions else 0,
        "num_mtp_layers": config.size("num_nextn_predict_layers"),
    }
    if config.missing:
        raise config.refuse(f" must have {', '.join(config.missing)} for its language model, but has not")
    parts = {part: getattr(family, part) for part in ("norm_bias", "attention_sinks", "embedding_norm", *KEYS)}
    spec = ModelSpec(name=config.source, hidden=hidden, **parts, **fields)
    _refuse_contradictions(spec, config)
    return spec


def _family(config: ConfigJson) -> Family:
    """Return the family's parts, with what the config itself says of them."""
    family = _known_families().get(str(config.values.get("model_type")), Family(gated_mlp=None))
    flags = {part: [flag for key in keys if (flag := config.flag(key)) is not None] for part, keys in KEYS.items()}
    stated: dict[str, Any] = {part: found[0] for part, found in flags.items() if found}
    if stated.get("qkv_bias") and config.flag("mlp_bias"):
        stated["linear_bias"] = True
    return replace(family, **(stated | _mpt_parts(config)))


@functools.cache
def _known_families() -> dict[str, Family]:
    """Return the families of the catalog by model type."""
    entries = [dict(entry) for entry in read_catalog("config_families").values()]
    return {name: Family(**entry) for entry in entries for name in entry.pop("model_types")}


def _mpt_parts(config: ConfigJson) -> dict[str, Any]:
    """Return what MPT says by keys of its own: that it has biases, and positions that are neither ALiBi nor rotary."""
    biases = {"linear_bias": True, "norm_bias": True} if config.flag("no_bias") is False else {}
    attention = config.values.get("attn_config")
    learned = isinstance(attention, dict) and attention.get("alibi") is False and not attention.get("rope")
    return biases | ({"learned_positions": True} if learned else {})


def _gated(config: ConfigJson, family: Family) -> bool:
    if family.gated_mlp is not None:
        return family.gated_mlp
    activation = next((value for key in ACTIVATION if (value := config.values.get(key))), None)
    if activation not in (*GATED, *PLAIN):
        config.missing.append(f"a model_type that is known, or {ACTIVATION[0]}")
    return activation in GATED


def _ffn(config: ConfigJson, family: Family, hidden: int, *, is_needed: bool) -> int:
    """Return the width of a dense layer, which a mixture of experts without one need not say."""
    names = (family.dense_ffn_key, *FFN)
    if not is_needed:
        return config.count(*names) or 0
    ratio = config.count("expansion_ratio") or family.ffn_ratio
    return config.need(*names, otherwise=ratio * hidden)


def _head_dim(config: ConfigJson, hidden: int, heads: int) -> int:
    mla_dim = config.count("v_head_dim") if config.count("kv_lora_rank") else None
    if mla_dim:
        return mla_dim
    if not heads:
        return 0  # noted as missing already
    return config.need(*HEAD_DIM, otherwise=0 if hidden % heads else hidden // heads)


def _latent_attention(config: ConfigJson) -> LatentAttention | None:
    kv_rank = config.count("kv_lora_rank")
    if kv_rank is None:
        return None
    return LatentAttention(
        q_rank=config.count("q_lora_rank") or 0,
        kv_rank=kv_rank,
        qk_nope_dim=config.need("qk_nope_head_dim"),
        qk_rope_dim=config.need("qk_rope_head_dim"),
        v_dim=config.need("v_head_dim"),
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
        problem = "attention heads must be a multiple of key-value heads"
        raise config.refuse(f": {problem}, but got {spec.num_heads} and {spec.num_kv_heads}")
    if spec.top_k > spec.num_experts:
        problem = "a token must go to at most as many experts as there are"
        raise config.refuse(f": {problem}, but got {spec.top_k} of {spec.num_experts}")
    if spec.num_dense_layers > spec.num_layers:
        problem = "dense layers must be at most all layers"
        raise config.refuse(f": {problem}, but got {spec.num_dense_layers} of {spec.num_layers}")
