"""What an optimizer keeps besides the weights: tensors of their shapes, its groups of parameters in order, its step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from zenith_checkpoint.reading.shard_set import EXTRA_STATE
from zenith_checkpoint.split_rules import is_expert
from zenith_checkpoint.tensors import StoredTensor

MASTER = "param"
"""The weights in the precision that the optimizer computes in."""
MOMENTS = ("exp_avg", "exp_avg_sq")
STEP = "step"
PARAM_GROUPS = "param_groups"
SCALER = "grad_scaler"
SCHEDULER = "opt_param_scheduler"
SHARDING_TYPE = "param_state_sharding_type"

States = dict[str, dict[str, StoredTensor]]
"""By the kind of state and the name of the weight."""


class LeftOutError(Exception):
    """Raised with the reason for which an optimizer's state cannot be carried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The settings of one optimizer: those of each group of parameters, and its loss scaler."""

    param_groups: tuple[Mapping[str, Any], ...]
    step: float | None
    """The step of every parameter, where it does not stand in the groups."""
    scaler: Mapping[str, Any] | None = None

    @property
    def step_tensor(self) -> torch.Tensor:
        """The step as torch's optimizers keep it."""
        return torch.tensor(float(self.step or 0), dtype=torch.float32)

    @classmethod
    def of(cls, settings: Any, step: float | None = None, scaler: Any = None) -> Groups:
        """Return the groups of an optimizer's state_dict."""
        if not isinstance(settings, list) or not all(isinstance(group, dict) for group in settings):
            raise LeftOutError("its param_groups are not those of torch")
        plain = tuple({key: each for key, each in group.items() if key != "params"} for group in settings)
        odd = next((key for group in plain for key, each in group.items() if not is_plain(each)), None)
        if odd is not None or not is_plain(scaler):
            raise LeftOutError(f"{odd or SCALER!r} of its groups is no plain value")
        return cls(param_groups=plain, step=step, scaler=scaler)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerState:
    """The optimizer's state of a whole model as the ranks of a layout hold it."""

    tp: int
    num_stages: int
    states: dict[tuple[int, int], States]
    """States by tensor rank and stage, under the names that the weights have there."""
    groups: tuple[Groups, ...]
    """One for all weights, or a second one for experts that are spread over ranks."""
    is_sharded: bool
    """Megatron's distributed optimizer."""
    bucket_numel: int | None = None
    """The elements after which its buffers begin a new bucket."""
    beside: Mapping[str, Any]
    """The learning-rate scheduler."""

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of tensors for each weight."""
        return tuple(next(iter(self.states.values())))


def is_plain(value: Any) -> bool:
    """Tell whether a value is a number, a word, or a container of such."""
    if isinstance(value, dict):
        return all(is_plain(each) for each in (*value, *value.values()))
    if isinstance(value, list | tuple):
        return all(is_plain(each) for each in value)
    return value is None or isinstance(value, bool | int | float | str)


def scheduler_of(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the learning-rate scheduler of an optimizer, where it is plain."""
    found = content.get(SCHEDULER)
    return {SCHEDULER: found} if isinstance(found, dict) and is_plain(found) else {}


def by_optimizer(names: Iterable[str], num_optimizers: int) -> list[list[str]]:
    """Return the weights of each optimizer: the second one, where there are two, is that of the experts."""
    listed = list(names)
    if num_optimizers == 1:
        return [listed]
    return [[name for name in listed if is_expert(name) == experts] for experts in (False, True)]


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


def decays(group: Mapping[str, Any]) -> bool:
    """Tell whether a group's parameters decay, as Megatron says it or torch."""
    return bool(group.get("wd_mult", group.get("pre_wd_mult", group.get("weight_decay", 1))))


def is_member(group: Mapping[str, Any], name: str, num_axes: int, *, is_only: bool) -> bool:
    """Tell whether a parameter is of a group: one that torch's optimizer has alone holds all, others go by decay."""
    return (is_only and not {"wd_mult", "pre_wd_mult"} & group.keys()) or has_decay(name, num_axes) == decays(group)


def has_decay(name: str, num_axes: int) -> bool:
    """Tell whether Megatron applies weight decay to a parameter: to all but biases and vectors."""
    return num_axes > 1 and not name.endswith(".bias")
