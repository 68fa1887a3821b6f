"""What a model's family implies and its config.json leaves unsaid, by `model_type`."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Hold a family's parts; the defaults are Llama's."""

    gated_mlp: bool | None = True
    """None where the activation tells."""
    tied_embeddings: bool = False
    """Where the config has no tie_word_embeddings, which is written only where it differs from the family's."""
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
    """One shared expert as wide as the others, without a key that says so."""
    dense_ffn_key: str = "intermediate_size"
    """What a dense layer's width is called where experts are many."""


LLAMA = Family()
QWEN2 = Family(qkv_bias=True)
QWEN2_MOE = Family(qkv_bias=True, shared_gate=True)
QWEN3 = Family(qk_norm=True)
GEMMA = Family(tied_embeddings=True)
GPT2 = Family(
    gated_mlp=False,
    tied_embeddings=True,
    norm_bias=True,
    linear_bias=True,
    learned_positions=True,
    ffn_ratio=4,
)
BLOOM = replace(GPT2, learned_positions=False, embedding_norm=True)
NEOX = replace(GPT2, learned_positions=False, tied_embeddings=False, ffn_ratio=0)
UNKNOWN = Family(gated_mlp=None)

FAMILIES = {
    "baichuan": LLAMA,
    "bloom": BLOOM,
    "chatglm": QWEN2,
    "cohere": GEMMA,
    "dbrx": LLAMA,
    "deepseek_v2": LLAMA,
    "deepseek_v3": LLAMA,
    # Falcon has a key for its biases, and its wide layers are 4 h as in GPT.
    "falcon": replace(GPT2, learned_positions=False, linear_bias=False),
    "gemma": GEMMA,
    "gemma2": GEMMA,
    "gemma3_text": replace(GEMMA, qk_norm=True),
    "glm4": LLAMA,
    "glm4_moe": LLAMA,
    "gpt2": GPT2,
    "gpt_bigcode": GPT2,
    "gpt_neo": GPT2,
    "gpt_neox": NEOX,
    "gpt_oss": Family(linear_bias=True, attention_sinks=True, router_bias=True),
    "granite": LLAMA,
    "internlm2": LLAMA,
    "kimi_k2": LLAMA,
    "llama": LLAMA,
    "llama4_text": Family(shared_expert=True, dense_ffn_key="intermediate_size_mlp"),
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "mpt": replace(GPT2, linear_bias=False, norm_bias=False, learned_positions=False),
    "nemotron": Family(gated_mlp=False, norm_bias=True),
    "olmo": LLAMA,
    "olmo2": QWEN3,
    "olmoe": QWEN3,
    "opt": GPT2,
    "phi": NEOX,
    "phi3": LLAMA,
    "phimoe": Family(norm_bias=True, qkv_bias=True),
    "qwen2": QWEN2,
    "qwen2_5_omni_text": QWEN2,
    "qwen2_5_vl": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen2_moe": QWEN2_MOE,
    "qwen2_vl": QWEN2,
    "qwen2_vl_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_moe": QWEN3,
    "qwen3_omni_moe_text": QWEN3,
    "qwen3_vl_moe_text": QWEN3,
    "qwen3_vl_text": QWEN3,
    "stablelm": Family(norm_bias=True),
    "starcoder2": replace(GPT2, learned_positions=False, ffn_ratio=0),
}

KEYS = {
    "tied_embeddings": ("tie_word_embeddings",),
    "linear_bias": ("use_bias", "bias"),
    "qkv_bias": ("qkv_bias", "add_qkv_bias", "use_qkv_bias", "attention_bias"),
    "qk_norm": ("use_qk_norm", "qk_layernorm"),
}
"""Keys by which a config overrides its family."""

GATED = ("silu", "swish", "swiglu", "geglu", "reglu", "glu")
PLAIN = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "quick_gelu", "relu", "relu2", "squared_relu")
"""Activations that tell, in a family that is not listed, whether the feed-forward part has three matrices or two."""
