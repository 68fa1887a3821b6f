"""The order of a model's parameters, by which Megatron's optimizers number them and lay them out in buffers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from zenith_tune.checkpoint.optimizer.state import LeftOutError
from zenith_tune.checkpoint.reading.shard_set import EXTRA_STATE

_MODULES = (
    *("embedding", "word_embeddings", "position_embeddings", "tokentype_embeddings", "decoder", "layers"),
    *("input_layernorm", "self_attention", "pre_mlp_layernorm", "mlp"),
    *("core_attention", "linear_proj", "linear_qkv", "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj"),
    *("linear_kv_down_proj", "linear_kv_up_proj", "q_layernorm", "k_layernorm", "kv_layernorm"),
    *("router", "experts", "local_experts", "shared_experts", "gate_weight", "linear_fc1", "linear_fc2"),
    *("final_layernorm", "final_norm", "output_layer"),
    *("softmax_offset", "layer_norm_weight", "layer_norm_bias", "weight", "bias"),
)
"""The parts of Megatron Core's names; those of one module stand in the order in which it makes them."""
_ORDER = {name: number for number, name in enumerate(_MODULES)}
_BUFFERS = re.compile(r"(?:.*\.)?router\.(expert_bias|local_tokens_per_expert|global_tokens_per_expert)", re.DOTALL)


def is_parameter(name: str) -> bool:
    """Tell whether an optimizer has a state for an entry of a state_dict."""
    return not EXTRA_STATE.fullmatch(name) and not _BUFFERS.fullmatch(name)


def in_order(names: Iterable[str]) -> list[str]:
    """Return names in the order in which Megatron Core makes their parameters.

    >>> in_order(["decoder.layers.10.mlp.linear_fc1.weight", "decoder.layers.2.mlp.linear_fc2.weight"])[0]
    'decoder.layers.2.mlp.linear_fc2.weight'
    """
    return sorted(names, key=_place)


def _place(name: str) -> tuple[tuple[int, int], ...]:
    places = []
    for part in name.split("."):
        word = part if part in _ORDER else part.rstrip("0123456789")  # linear_fc1, but weight12 and 12
        if word and word not in _ORDER:
            raise LeftOutError(f"the place of {name!r} among a model's parameters is not known")
        places.append((_ORDER.get(word, -1), int(part.removeprefix(word) or -1)))
    return tuple(places)


def has_decay(name: str, num_axes: int) -> bool:
    """Tell whether Megatron applies weight decay to a parameter: to all but biases and vectors."""
    return num_axes > 1 and not name.endswith(".bias")
