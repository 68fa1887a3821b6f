"""The shards of a checkpoint: one file per tensor rank and pipeline stage, found and held against one another.

What shows that shards are of one model and one checkpoint: layers that are alike, one hidden size, both ends.

Kinds of layers are told apart by their names: a mixture of experts every n-th layer or a hybrid of several mixers has
names of its own in each. What all kinds name alike must be alike, and no layer may lack what one like it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.checkpoint.output_place import PREFIX, SHARD_NAME, shard_name
from zenith_tune.checkpoint.split_rules import EMBEDDING, HEAD, TIED_HEAD, in_layer, is_final_norm, layer_of
from zenith_tune.checkpoint.tensor_view import JoinedTensor, ShardContent, StoredTensor, describe
from zenith_tune.errors import UsageError

EXTRA_STATE = "_extra_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSet:
    """Hold the content of every shard by tensor rank and stage; the ranks of a stage hold the same names and shapes."""

    folder: Path
    tp: int
    pp: int
    extension: str
    contents: dict[tuple[int, int], ShardContent]

    def ranks(self, stage: int, name: str) -> list[StoredTensor]:
        """Return one tensor of a stage as each tensor rank holds it."""
        return [self.contents[tp, stage].tensors[name] for tp in range(self.tp)]

    def names(self, stage: int) -> list[str]:
        """Return the names on a stage, without what Transformer Engine keeps for itself on each rank."""
        names = self.contents[0, stage].tensors
        return [name for name in names if name.rpartition(".")[2] != EXTRA_STATE]


def read_shards(folder: Path) -> ShardSet:
    """Find and read the shards of a folder; refuse missing, extra and mismatched ones."""
    found = _found(folder)
    extensions = sorted({path.suffix[1:] for path in found.values()})
    tp, pp = (1 + max(ranks[axis] for ranks in found) for axis in (0, 1))
    # Lazy on purpose: one file named after rank 999999999 must not make a list of as many.
    missing = next(((t, p) for t in range(tp) for p in range(pp) if (t, p) not in found), None)
    if missing is not None:
        problem = f"{folder} must hold {tp} x {pp} = {tp * pp} shards (TP x PP), but has {len(found)}"
        raise UsageError(f"{problem}: {shard_name(*missing, extensions[0])} is missing")
    if len(extensions) > 1:
        raise UsageError(
            f"the shards of {folder} must be of one kind, but are .bin and .safetensors", hint="leave one out"
        )
    contents = {ranks: _read(found[ranks]) for ranks in sorted(found)}
    shards = ShardSet(folder=folder, tp=tp, pp=pp, extension=extensions[0], contents=contents)
    for ranks in contents:
        _refuse_mismatch(shards, *ranks)
    return shards


def _found(folder: Path) -> dict[tuple[int, int], Path]:
    try:
        listed = sorted(path for path in folder.iterdir() if path.name.startswith(PREFIX))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{str(folder)!r} is no folder of shards ({reason})", hint="give the folder") from None
    found: dict[tuple[int, int], Path] = {}
    for path in listed:
        match = SHARD_NAME.fullmatch(path.name)
        if match is None:
            problem = f"{path.name!r} in {folder} is no shard's name, which is {PREFIX}T_pp_P.bin or .safetensors"
            raise UsageError(problem, hint="move it away")
        ranks = int(match[1]), int(match[2])
        if ranks in found:
            raise UsageError(f"{folder} holds both {found[ranks].name} and {path.name}", hint="move one away")
        found[ranks] = path
    if not found:
        raise UsageError(
            f"{folder} holds no shards, named {PREFIX}T_pp_P.bin or .safetensors", hint="give their folder"
        )
    return found


def _read(path: Path) -> ShardContent:
    if path.suffix == ".bin":
        from zenith_tune.checkpoint.bin_file import read_bin

        content = read_bin(path)
    else:
        from zenith_tune.checkpoint.safetensors_shards import read_safetensors

        content = read_safetensors(path)
    if not content.tensors:
        raise UsageError(f"shard {path} holds no tensor", hint="copy or save it again")
    return content


def _refuse_mismatch(shards: ShardSet, tp: int, stage: int) -> None:
    """Refuse a shard that differs in names, types, shapes or nesting from the first one of its stage."""
    first, other = shards.contents[0, stage], shards.contents[tp, stage]
    names = [shard_name(rank, stage, shards.extension) for rank in (0, tp)]
    for name in [*first.tensors, *other.tensors]:
        if name.endswith(EXTRA_STATE):
            continue
        if name not in first.tensors or name not in other.tensors:
            there, absent = names if name in first.tensors else names[::-1]
            raise UsageError(f"the shards of a stage must hold the same names, but {name!r} is in {there} and not in "
                             f"{absent}: save them together")  # fmt: skip
        a, b = first.tensors[name], other.tensors[name]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            kinds = f"{describe(a.dtype, a.shape)} in {names[0]} and {describe(b.dtype, b.shape)} in {names[1]}"
            raise UsageError(f"the shards of a stage must agree, but {name!r} is {kinds}", hint="save them together")
    if other.wrapper != shards.contents[0, 0].wrapper:
        raise UsageError(
            f"the shards of {shards.folder} must be nested alike, but {names[1]} is not", hint="save them again"
        )


Tensors = Mapping[str, JoinedTensor]
Files = Mapping[str, str]
"""The file that each weight was found in first."""
DIFFERENT = "the shards are of different models"
HINT = f"{DIFFERENT}, or give --any-model if its layers do differ"
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
                values = f"{_short(mine[key])} in {names[0]} and {_short(theirs[key])} in {names[1]}"
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
            one = f"{like.name!r} is {describe(like.dtype, like.shape)} in {files[like.name]}"
            two = f"{name!r} {describe(tensor.dtype, tensor.shape)} in {files[name]}"
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


def _short(value: Any) -> str:
    return str(value)[:40]
