"""The experts that a config.json describes: how many, how wide, and in which layers."""

from __future__ import annotations

import reprlib
from typing import Any

from zenith_tune.describe.config_json import ConfigJson
from zenith_tune.describe.families import Family
from zenith_tune.describe.needed_keys import NeededKeys

TOP_K = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "num_selected_experts")
WIDTH = ("moe_intermediate_size", "expert_intermediate_size", "intermediate_size", "ffn_hidden_size")
NUM_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size")
STEPS = ("decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period")


def expert_fields(keys: NeededKeys, family: Family, num_experts: int) -> dict[str, Any]:
    """Return the fields of ModelSpec that describe a mixture of experts."""
    config = keys.config
    width = keys.need(*WIDTH)
    shared = config.count(*SHARED_WIDTH)
    if shared is None:
        shared = width * (num_shared_experts(config) or int(family.shared_expert))
    return {
        "num_experts": num_experts,
        "top_k": keys.need(*TOP_K),
        "moe_ffn_hidden": width,
        "shared_ffn_hidden": shared,
        "shared_gate": family.shared_gate,
        "router_bias": family.router_bias,
        "num_dense_layers": num_dense_layers(config),
    }


def num_shared_experts(config: ConfigJson) -> int:
    """Return how many experts every token passes through."""
    return max(config.size(key) for key in NUM_SHARED)


def num_dense_layers(config: ConfigJson) -> int:
    """Return how many layers without experts come first; a config that has others among the rest is refused."""
    for key in STEPS:
        if config.size(key, default=1) != 1:
            raise _mixed(config, key)
    return max(config.size("first_k_dense_replace"), _listed(config), _pattern(config))


def _listed(config: ConfigJson) -> int:
    """Return how many layers Qwen's list of dense layers names."""
    layers = config.values.get("mlp_only_layers") or []
    if not isinstance(layers, list) or layers != list(range(len(layers))):
        raise _mixed(config, "mlp_only_layers")
    return len(layers)


def _pattern(config: ConfigJson) -> int:
    """Return how many layers come before those with experts in a list of zeros and ones."""
    pattern = config.values.get("moe_layer_freq", 1)
    if pattern in (1, None):
        return 0
    if not isinstance(pattern, list) or pattern != sorted(pattern, key=str) or not set(map(str, pattern)) <= {"0", "1"}:
        raise _mixed(config, "moe_layer_freq")
    return pattern.count(0)


def _mixed(config: ConfigJson, key: str) -> Exception:
    value = reprlib.repr(config.values.get(key))
    return config.refuse(f": {key} must leave layers without experts to the beginning alone, but is {value}")
