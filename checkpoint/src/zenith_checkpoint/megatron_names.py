"""What Megatron calls its files and its weights in the formats that it loads: mp_rank folders and torch_dist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from zenith_checkpoint.lazy_tensor import LazyTensor
from zenith_checkpoint.split_rules import expert_index, in_layer, is_expert, layer_of, with_expert
from zenith_checkpoint.tensors import JoinedTensor, describe
from zenith_tune.errors import UsageError

_LAYER_NUMBER = re.compile(r"(\blayers\.)[0-9]+\.")
_SEQUENTIAL = re.compile(r"\.experts\.local_experts\.[0-9]+\.")
_GROUPED = re.compile(r"\.experts\.(linear_fc[12]\.(?:weight|bias))[0-9]+$")


def iteration_name(iteration: int | None) -> str:
    """Return the folder of an iteration, and of a model that was trained elsewhere where there is none.

    >>> iteration_name(20), iteration_name(None)
    ('iter_0000020', 'release')
    """
    return "release" if iteration is None else f"iter_{iteration:07d}"


def rank_name(ranks: tuple[int, int, int], degrees: tuple[int, int, int]) -> str:
    """Return the folder of a tensor rank, a stage and an expert rank.

    >>> rank_name((1, 0, 3), (2, 1, 4)), rank_name((1, 2, 0), (2, 4, 1))
    ('mp_rank_01_003', 'mp_rank_01_002')
    """
    stages = f"_{ranks[1]:03d}" if degrees[1] > 1 else ""
    experts = f"_{ranks[2]:03d}" if degrees[2] > 1 else ""
    return f"mp_rank_{ranks[0]:02d}{stages}{experts}"


def of_expert_rank(tensors: Iterable[JoinedTensor], rank: int, ep: int) -> list[JoinedTensor]:
    """Return what one of `ep` expert ranks holds: all that is no expert, and its experts, counted from 0."""
    listed = list(tensors)
    numbers = {each.name: expert_index(each.name) for each in listed if is_expert(each.name)}
    num_experts = 1 + max((number for number in numbers.values() if number is not None), default=-1)
    if num_experts % ep or (ep > 1 and not num_experts):
        raise UsageError(f"{num_experts} experts cannot be spread over {ep} expert ranks", hint="choose another --ep")
    num_local = max(num_experts // ep, 1)
    kept = []
    for each in listed:
        number = numbers.get(each.name)
        if number is None:
            kept.append(each)
        elif number // num_local == rank:
            kept.append(replace(each, name=with_expert(each.name, number % num_local)))
    return kept


def stacked(tensors: Mapping[str, JoinedTensor], args: Mapping[str, Any]) -> list[JoinedTensor]:
    """Return the weights as torch_dist has them: those of all layers, and of all experts, in one tensor.

    Layers of several kinds keep their numbers, as they do in Megatron.
    """
    kinds: dict[int, set[str]] = {}
    for name in tensors:
        place, inner = layer_of(name), in_layer(name)
        if place is not None and inner is not None:
            kinds.setdefault(place[1], set()).add(inner)
    are_alike = all(kind == next(iter(kinds.values())) for kind in kinds.values())
    groups: dict[str, list[JoinedTensor]] = {}
    for name, tensor in sorted(tensors.items(), key=lambda each: _order(each[0])):
        groups.setdefault(_key(name, args, are_alike=are_alike), []).append(tensor)
    return [
        _stack(key, parts, len(kinds) if are_alike and layer_of(parts[0].name) else 0) for key, parts in groups.items()
    ]


def _order(name: str) -> tuple[int, int]:
    place = layer_of(name)
    return (place[1] if place else -1), expert_index(name) or 0


def _key(name: str, args: Mapping[str, Any], *, are_alike: bool) -> str:
    """Return a weight's key: a norm has the name that it has where it is fused with the layer behind it.

    >>> _key("decoder.layers.3.input_layernorm.weight", {}, are_alike=True)
    'decoder.layers.self_attention.linear_qkv.layer_norm_weight'
    """
    key = re.sub(r"\binput_layernorm\.", "self_attention.linear_qkv.layer_norm_", name)
    if args.get("transformer_impl") == "local":
        key = re.sub(r"\bpre_mlp_layernorm\.", "mlp.linear_fc1.layer_norm_", key)
    key = _GROUPED.sub(r".experts.experts.\1", _SEQUENTIAL.sub(".experts.experts.", key))
    return _LAYER_NUMBER.sub(r"\1", key) if are_alike and layer_of(name) else key


def _stack(key: str, parts: list[JoinedTensor], num_layers: int) -> JoinedTensor:
    first = parts[0]
    other = next((each for each in parts if (each.dtype, each.shape) != (first.dtype, first.shape)), None)
    if other is not None:
        shown = f"{first.name!r} is {describe(first)} and {other.name!r} {describe(other)}"
        raise UsageError(f"weights of one tensor must be alike, but {shown}")
    stacks = [each.data for each in parts]
    if ".experts.experts." in key:
        num_experts = len(parts) // max(num_layers, 1)
        stacks = [LazyTensor.stack(stacks[at : at + num_experts]) for at in range(0, len(parts), num_experts)]
    return replace(first, name=key, key_parts=(1,), data=LazyTensor.stack(stacks) if num_layers else stacks[0])
