"""What shows that shards are of one model and one checkpoint: layers that are alike, one hidden size, both ends.

Kinds of layers differ in their names: a mixture of experts every n-th layer or a hybrid of several mixers has names of
its own in each. What all kinds name alike must be alike, and no layer may lack what one like it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from zenith_checkpoint.model_shape import ModelShape
from zenith_checkpoint.split_rules import (
    EMBEDDING,
    HEAD,
    TIED_HEAD,
    Split,
    expert_of,
    in_layer,
    is_expert,
    is_final_norm,
    layer_of,
)
from zenith_checkpoint.tensors import JoinedTensor, ShardContent, describe
from zenith_tune.errors import UsageError

Tensors = Mapping[str, JoinedTensor]
Files = Mapping[str, str]
"""The file that each weight was found in first."""
HINT = "the shards are of different models, or give --any-model if its layers do differ"
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


def refuse_two_runs(contents: list[ShardContent]) -> None:
    """Refuse shards that record different iterations, samples or versions."""
    first, *others = contents
    for other in others:
        for mine, theirs in ((first.plain, other.plain), (first.metadata, other.metadata)):
            key = next(
                (key for key in mine if _OF_A_RUN.fullmatch(key) and mine[key] != theirs.get(key, mine[key])), None
            )
            if key is not None:
                values = f"{str(mine[key])[:40]} in {first.name} and {str(theirs[key])[:40]} in {other.name}"
                problem = f"all shards must be of one checkpoint, but {key} is {values}"
                raise UsageError(problem, hint="give the folder of one save")


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
            one = f"{like.name!r} is {describe(like)} in {files[like.name]}"
            two = f"{name!r} {describe(tensor)} in {files[name]}"
            raise UsageError(f"layers must be alike, but {one} and {two}", hint=HINT)


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
            problem = f"layers must hold the same names, but layer {number} in {where} has no like of {lacking!r}"
            raise UsageError(f"{problem} in {files[lacking]}", hint=HINT)


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
            raise UsageError(f"the hidden size is {one}, but {size} by {name!r} in {files[name]}", hint=HINT)


def _refuse_ends(names: Iterable[str]) -> None:
    """Refuse a language model without its embedding or its final norm."""
    head = next((name for name in names if name.endswith((HEAD, TIED_HEAD))), None)
    embedding = next((name for name in names if name.endswith(EMBEDDING)), None)
    hint = "a shard lost it when it was saved; save it again, or give --any-model if the model has none"
    if head is not None and embedding is None:
        problem = f"a model with {head!r} must have {EMBEDDING!r} on its first stage, but none of its shards holds it"
        raise UsageError(problem, hint=hint)
    has_layers = any(layer_of(name) is not None for name in names)
    if embedding is not None and has_layers and not any(is_final_norm(name) for name in names):
        problem = (
            f"a model with {embedding!r} must have a final norm on its last stage, but none of its shards holds it"
        )
        raise UsageError(problem, hint=hint)


def refuse_experts(tensors: Tensors) -> None:
    """Refuse a mixture of which some experts are missing, as in shards of expert parallelism."""
    found: dict[str, set[int]] = {}
    for name in tensors:
        expert = expert_of(name)
        if expert is not None:
            found.setdefault(expert[0], set()).add(expert[1])
    for mixture, experts in found.items():
        router = tensors.get(f"{mixture}router.weight")
        num_experts = router.shape[0] if router is not None and router.shape else max(experts) + 1
        if experts != set(range(num_experts)):
            shown = ", ".join(map(str, sorted(experts)[:8])) + (" ..." if len(experts) > 8 else "")
            problem = (
                f"{mixture.rstrip('.')!r} must hold experts 0 to {num_experts - 1}, but holds {len(experts)} ({shown})"
            )
            raise UsageError(f"{problem}: shards of expert parallelism cannot be joined; save with EP 1")


def refuse_layers(num_layers: int, shape: ModelShape) -> None:
    """Refuse another number of layers than was given."""
    if shape.num_layers is not None and shape.num_layers != num_layers:
        problem = f"the model has {shape.num_layers} layers, but the shards hold {num_layers}"
        raise UsageError(f"{problem}: a stage is missing, or check --model")


def refuse_tables(tables: list[JoinedTensor], shape: ModelShape) -> int | None:
    """Refuse vocabularies of another size than was given; return their rows, padding included."""
    rows = {table.shape[0] for table in tables}
    if len(rows) > 1:
        problem = f"all vocabulary tables must have the same rows, but have {', '.join(map(str, sorted(rows)))}"
        raise UsageError(f"{problem}: the shards are of different checkpoints")
    for table in tables:
        if shape.hidden is not None and table.name.endswith(EMBEDDING) and table.shape[1:] != (shape.hidden,):
            problem = f"{table.name!r} must have {shape.hidden} columns, but has {list(table.shape)}"
            raise UsageError(problem, hint="check --model")
    padded = rows.pop() if rows else None
    if padded is not None and shape.vocab is not None and shape.vocab > padded:
        problem = f"the vocabulary has {shape.vocab} entries, but the shards hold only {padded} rows"
        raise UsageError(problem, hint="check --vocab or --model")
    return padded


def refuse_widths(tensors: Tensors, shape: ModelShape) -> None:
    """Refuse feed-forward parts and routers of another size than was given."""
    for name, tensor in tensors.items():
        axis, expected, what = 0, None, ""
        if name.endswith((".mlp.linear_fc2.weight", ".mlp.dense_4h_to_h.weight")):
            axis, expected, what = 1, shape.ffn, "columns, the feed-forward width"
        elif tensor.split is Split.ROW and is_expert(name):
            axis, expected, what = 1, shape.expert_ffn, "columns, the experts' width"
        elif name.endswith(".router.weight"):
            expected, what = shape.num_experts, "rows, one for each expert"
        if expected is not None and tensor.shape[axis] != expected:
            problem = f"{name!r} must have {expected} {what}, but is {describe(tensor)}"
            raise UsageError(problem, hint="check --model")
