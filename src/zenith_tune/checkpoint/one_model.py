"""What shows that shards are of one model and one checkpoint: layers that are alike, one hidden size, both ends.

Kinds of layers are told apart by their names: a mixture of experts every n-th layer or a hybrid of several mixers has
names of its own in each. What all kinds name alike must be alike, and no layer may lack what one like it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from zenith_tune.checkpoint.joined_tensor import JoinedTensor
from zenith_tune.checkpoint.shard_set import ShardSet, shard_name
from zenith_tune.checkpoint.split_rules import EMBEDDING, HEAD, TIED_HEAD, in_layer, is_final_norm, layer_of
from zenith_tune.checkpoint.stored_tensor import describe
from zenith_tune.errors import UsageError

Tensors = Mapping[str, JoinedTensor]
Files = Mapping[str, str]
"""The file that each weight was found in first."""
DIFFERENT = "the shards are of different models"
CURE = f"{DIFFERENT}, or give --any-model if its layers do differ"
_OF_A_RUN = re.compile(r"iteration|checkpoint_version|consumed_.*", re.DOTALL)
_HIDDEN_AXES = [
    (r"(word|position|tokentype)_embeddings\.weight|word_embeddings_for_head\.weight|output_layer\.weight", 1),
    (r"(linear_qkv|query_key_value|linear_q_proj|linear_q_down_proj|linear_kv_down_proj)\.weight", 1),
    (r"(self_)?attention\.(linear_proj|dense)\.weight|mlp\.(linear_fc2|dense_4h_to_h)\.weight", 0),
    (r"mlp\.(linear_fc1|dense_h_to_4h)\.weight|router\.weight", 1),
    (r"(input_layernorm|pre_mlp_layernorm|post_attention_layernorm|final_layernorm|final_norm)\.weight", 0),
    (r"linear_qkv\.layer_norm_weight|mlp\.linear_fc1\.layer_norm_weight", 0),
]
_HIDDEN = [(re.compile(rf"(?:.*\.)?(?:{ending})", re.DOTALL), axis) for ending, axis in _HIDDEN_AXES]


def refuse_two_runs(shards: ShardSet) -> None:
    """Refuse shards that tell different iterations, samples or versions beside their weights."""
    first = shards.contents[0, 0]
    for ranks, other in shards.contents.items():
        for mine, theirs in ((first.plain, other.plain), (first.metadata, other.metadata)):
            key = next(
                (key for key in mine if _OF_A_RUN.fullmatch(key) and mine[key] != theirs.get(key, mine[key])), None
            )
            if key is not None:
                names = shard_name(0, 0, shards.extension), shard_name(*ranks, shards.extension)
                told = f"{_short(mine[key])} in {names[0]} and {_short(theirs[key])} in {names[1]}"
                law = f"all shards must be of one checkpoint, but {key} is {told}"
                raise UsageError(f"{law}: give the folder of one save")


def refuse_two_models(tensors: Tensors, files: Files) -> None:
    """Refuse weights that cannot be of one model."""
    _refuse_unlike(tensors, files)
    _refuse_lacking(tensors, files)
    _refuse_sizes(tensors, files)
    _refuse_ends(tensors)


def _refuse_unlike(tensors: Tensors, files: Files) -> None:
    """Refuse a weight of another type or shape than its like in another layer, or of another expert."""
    known: dict[str, JoinedTensor] = {}
    for name, tensor in tensors.items():
        inner = in_layer(name)
        if inner is None:
            continue
        like = known.setdefault(inner, tensor)
        if (like.dtype, like.shape) != (tensor.dtype, tensor.shape):
            one = f"{like.name!r} is {describe(like.dtype, like.shape)} in {files[like.name]}"
            two = f"{name!r} {describe(tensor.dtype, tensor.shape)} in {files[name]}"
            raise UsageError(f"layers must be alike, but {one} and {two}: {CURE}")


def _refuse_lacking(tensors: Tensors, files: Files) -> None:
    """Refuse a layer that has nothing of its own and lacks what another has: kinds of layers differ both ways."""
    layers: dict[int, dict[str, str]] = {}
    for name in tensors:
        place, inner = layer_of(name), in_layer(name)
        if place is not None and inner is not None:
            layers.setdefault(place[1], {})[inner] = name
    kinds = {frozenset(inner): number for number, inner in reversed(layers.items())}
    for fewer, number in kinds.items():
        fuller = next((kind for kind in kinds if fewer < kind), None)
        if fuller is not None:
            lacking = layers[kinds[fuller]][min(fuller - fewer)]
            where = files[next(iter(layers[number].values()))]
            law = f"layers must hold the same names, but layer {number} in {where} has no like of {lacking!r}"
            raise UsageError(f"{law} in {files[lacking]}: {CURE}")


def _refuse_sizes(tensors: Tensors, files: Files) -> None:
    """Refuse embeddings, layers and heads of different hidden sizes."""
    first: tuple[int, str] | None = None
    for name, tensor in tensors.items():
        axis = next((axis for pattern, axis in _HIDDEN if pattern.fullmatch(name)), None)
        if axis is None or len(tensor.shape) <= axis:
            continue
        size = tensor.shape[axis]
        if first is None:
            first = size, name
        elif size != first[0]:
            one = f"{first[0]} by {first[1]!r} in {files[first[1]]}"
            raise UsageError(f"the hidden size is {one}, but {size} by {name!r} in {files[name]}: {CURE}")


def _refuse_ends(names: Iterable[str]) -> None:
    """Refuse a language model without its embedding or its final norm."""
    head = next((name for name in names if name.endswith((HEAD, TIED_HEAD))), None)
    embedding = next((name for name in names if name.endswith(EMBEDDING)), None)
    cure = "a shard lost it when it was saved; save it again, or give --any-model if the model has none"
    if head is not None and embedding is None:
        law = f"a model with {head!r} must have {EMBEDDING!r} on its first stage, but none of its shards holds it"
        raise UsageError(f"{law}: {cure}")
    has_layers = any(layer_of(name) is not None for name in names)
    if embedding is not None and has_layers and not any(is_final_norm(name) for name in names):
        law = f"a model with {embedding!r} must have a final norm on its last stage, but none of its shards holds it"
        raise UsageError(f"{law}: {cure}")


def _short(value: Any) -> str:
    return str(value)[:40]
