"""The whole model that a set of shards holds: every weight once, under its global name."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from zenith_checkpoint.model_checks import (
    Tensors,
    refuse_experts,
    refuse_layers,
    refuse_tables,
    refuse_two_models,
    refuse_two_runs,
    refuse_widths,
)
from zenith_checkpoint.model_shape import Attention, ModelShape, find_attention
from zenith_checkpoint.reading.shard_set import ShardSet
from zenith_checkpoint.split_rules import (
    EMBEDDING,
    HEAD,
    TIED_HEAD,
    Home,
    LayerNumbers,
    Split,
    down_of,
    find_numbers,
    home_of,
    is_expert,
    is_grouped,
    is_mtp,
    layer_of,
    renumbered,
    split_of,
)
from zenith_checkpoint.tensors import JoinedTensor, join_ranks
from zenith_tune.errors import UsageError


def find_heads(tensors: Tensors, shape: ModelShape) -> tuple[Attention, ...]:
    """Return the kinds of attention in the model; none where the size of a head is not known."""
    kinds: dict[Attention, None] = {}
    for name, tensor in tensors.items():
        if tensor.split is not Split.QKV or not name.endswith(".weight"):
            continue
        module = name.rpartition(".")[0].rpartition(".")[0]
        projection = tensors.get(f"{module}.linear_proj.weight") or tensors.get(f"{module}.dense.weight")
        if projection is None:
            raise UsageError(
                f"{name!r} must come with its output projection, but that is missing", hint="save it again"
            )
        norm = tensors.get(f"{module}.q_layernorm.weight")
        attention = find_attention(
            shape,
            name,
            qkv_rows=tensor.shape[0],
            query_size=projection.shape[1],
            norm_size=norm.shape[0] if norm is not None and norm.shape else None,
        )
        if attention is not None:
            kinds[attention] = None
    return tuple(kinds)


MTP_TOO = "with layers of multi-token prediction on the last"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedModel:
    """The weights of a whole model, with what the shards record next to them."""

    tensors: dict[str, JoinedTensor]
    numbers: LayerNumbers
    is_tied: bool
    attention: tuple[Attention, ...]
    """The kinds of attention, where the heads are known."""
    padded_vocab: int | None
    on_every_stage: frozenset[str]
    wrapper: str | None
    plain: dict[str, Any]
    metadata: dict[str, str]
    left_out: frozenset[str]
    """Entries that are neither weights nor plain values."""

    @property
    def embedding(self) -> JoinedTensor | None:
        """The table of word embeddings."""
        return next((tensor for name, tensor in self.tensors.items() if name.endswith(EMBEDDING)), None)

    @property
    def has_mtp(self) -> bool:
        """Tell whether the last stage predicts several tokens, for which it holds the embedding too."""
        return any(is_mtp(name) for name in self.tensors)


def join_shards(shards: ShardSet, shape: ModelShape) -> JoinedModel:
    """Join the shards of all ranks; whatever is missing, extra or mismatched is refused."""
    refuse_two_runs(list(shards.contents.values()))
    names = [shards.names(stage) for stage in range(shards.pp)]
    numbers = find_numbers(names)
    refuse_layers(numbers.num_layers, shape)
    _refuse_grouped(names)
    found: dict[str, JoinedTensor] = {}
    stages: dict[str, list[int]] = {}
    for stage in range(shards.pp):
        for name in names[stage]:
            joined = _joined(shards, stage, name, numbers, shape)
            known = found.setdefault(joined.name, joined)
            if known is not joined:
                _refuse_other(known, joined, stages[joined.name][0], stage)
            stages.setdefault(joined.name, []).append(stage)
    _refuse_misplaced(stages, shards.pp)
    if not shape.any_model:
        files = {name: shards.contents[0, held[0]].name for name, held in stages.items()}
        refuse_two_models(found, files)
    housed = {name: _housed(tensor, stages[name], shards.pp) for name, tensor in found.items()}
    tensors, is_tied = _untied(housed, shape, shards.pp)
    refuse_experts(tensors)
    tables = [tensor for tensor in tensors.values() if tensor.split is Split.VOCABULARY]
    padded_vocab = refuse_tables(tables, shape)
    refuse_widths(tensors, shape)
    plain, metadata, left_out = _common(shards)
    return JoinedModel(
        tensors=tensors,
        numbers=numbers,
        is_tied=is_tied,
        attention=find_heads(tensors, shape),
        padded_vocab=padded_vocab,
        on_every_stage=frozenset(name for name, held in stages.items() if len(held) == shards.pp > 1),
        wrapper=shards.contents[0, 0].wrapper,
        plain=plain,
        metadata=metadata,
        left_out=frozenset(left_out),
    )


def _joined(shards: ShardSet, stage: int, name: str, numbers: LayerNumbers, shape: ModelShape) -> JoinedTensor:
    ranks = shards.ranks(stage, name)
    split, home = split_of(name), home_of(name)
    if split is Split.UP:
        split = _up_split(shards, stage, name)
    if shape.whole_experts and is_expert(name):
        split = Split.WHOLE
    place = layer_of(name)
    whole_name = renumbered(name, numbers.to_global(stage, place[1])) if place else name
    return join_ranks(ranks, whole_name, split, home)


def _up_split(shards: ShardSet, stage: int, name: str) -> Split:
    """Return whether an up-projection holds a gate: twice the width of the down-projection."""
    tensors, down_name = shards.contents[0, stage].tensors, down_of(name)
    up, down = tensors[name].shape, tensors[down_name].shape if down_name in tensors else ()
    if len(down) == 2 and up and up[0] in (down[1], 2 * down[1]):
        return Split.COLUMN if up[0] == down[1] else Split.GATED
    problem = (
        f"{name!r} has {list(up)} and {down_name!r} {list(down) or 'is missing'}, of which the first must have as "
    )
    raise UsageError(f"{problem}many rows as the second has columns, or twice as many: it is not Megatron's")


def _refuse_grouped(names: list[list[str]]) -> None:
    grouped = next((name for stage in names for name in stage if is_grouped(name)), None)
    if grouped is not None:
        problem = f"{grouped!r} holds all experts in one tensor, in an order that is not supported"
        raise UsageError(problem, hint="save with Transformer Engine's grouped experts, or without --moe-grouped-gemm")


def _refuse_other(known: JoinedTensor, other: JoinedTensor, stage: int, other_stage: int) -> None:
    """Refuse a weight that two stages hold differently."""
    if (known.dtype, known.shape) != (other.dtype, other.shape) or not known.data.equals(other.data):
        problem = f"{known.name!r} must be the same wherever it is, but stages {stage} and {other_stage} differ"
        raise UsageError(f"{problem}: the shards are of different checkpoints")


def _refuse_misplaced(stages: dict[str, list[int]], pp: int) -> None:
    """Refuse embeddings that the first stage does not hold, and heads that the last one does not."""
    last_too = any(is_mtp(name) for name in stages)
    for name, held in stages.items():
        home = home_of(name)
        first_ok = held == [0] or pp == 1 or (last_too and held == [0, pp - 1])
        if (home is Home.FIRST and not first_ok) or (home is Home.LAST and held != [pp - 1]):
            where = f"stage {', '.join(map(str, held))} of {pp}"
            problem = f"{name!r} belongs to the {home.value} stage ({MTP_TOO}), but is on {where}"
            raise UsageError(f"{problem}: the shards are misnamed or of different checkpoints")


def _housed(tensor: JoinedTensor, stages: list[int], pp: int) -> JoinedTensor:
    """Return a weight of unknown home as one of the stage where it was found."""
    ends = {0: Home.FIRST, pp - 1: Home.LAST}
    if tensor.home is not Home.UNKNOWN or pp == 1 or len(stages) > 1 or stages[0] not in ends:
        return tensor
    return replace(tensor, home=ends[stages[0]])


def _untied(found: dict[str, JoinedTensor], shape: ModelShape, pp: int) -> tuple[dict[str, JoinedTensor], bool]:
    """Return the weights without a tied output layer, which is a copy of the embedding; and whether it is tied."""
    embedding = next((tensor for name, tensor in found.items() if name.endswith(EMBEDDING)), None)
    copy = next((tensor for name, tensor in found.items() if name.endswith(TIED_HEAD)), None)
    head = copy or next((tensor for name, tensor in found.items() if name.endswith(HEAD)), None)
    if head is None or embedding is None:
        if shape.tied is False and embedding is not None:
            raise UsageError(
                "the shards hold no output layer, although it is not tied", hint="check --model or --untied"
            )
        return found, embedding is not None
    must_be = shape.tied or copy is not None
    may_be = must_be or (shape.tied is None and pp > 1)
    is_same = may_be and head.dtype == embedding.dtype and head.data.equals(embedding.data)
    if must_be and not is_same:
        problem = f"{head.name!r} must be the same as {embedding.name!r}, as the output layer is tied, but differs"
        raise UsageError(f"{problem}: the shards are of different checkpoints, or give --untied")
    return ({name: each for name, each in found.items() if each is not head} if is_same else found), is_same


def _common(shards: ShardSet) -> tuple[dict[str, Any], dict[str, str], set[str]]:
    """Return the entries that all shards have alike, and the names of what is left out."""
    contents = list(shards.contents.values())
    plain = _shared([each.plain for each in contents])
    metadata = _shared([each.metadata for each in contents])
    left_out = {name for each in contents for name in [*each.left_out, *each.plain] if name not in plain}
    extra = {name for each in contents for name in each.tensors if name.endswith("_extra_state")}
    return plain, metadata, left_out | extra


def _shared(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the entries that all have, with the same type and value."""
    first, *others = found
    return {
        key: value
        for key, value in first.items()
        if all(key in each and (type(each[key]), each[key]) == (type(value), value) for each in others)
    }


_OPTIMIZER = ("optim", "opt_param_scheduler", "chained", "distrib_optim", "zero_pp_rank")


def left_out_notes(left_out: frozenset[str], *, why: str = "") -> tuple[str, ...]:
    """Say what of a checkpoint is left out, and why the optimizer's state is where that was asked for."""
    has_optimizer = bool(why) or any(name.startswith(_OPTIMIZER) for name in left_out)
    said = (f"optimizer state: left out{why}, so that training continues with a fresh one",) if has_optimizer else ()
    if not left_out:
        return said
    shown = ", ".join(sorted(left_out)[:3])
    dots = " ..." if len(left_out) > 3 else ""
    entries = "1 entry" if len(left_out) == 1 else f"{len(left_out):,} entries"
    return (*said, f"left out: {entries}, no weights ({shown}{dots})")


def without_optimizer(left_out: frozenset[str]) -> frozenset[str]:
    """Return what is left out where the optimizer's state is not."""
    return frozenset(name for name in left_out if not name.startswith(_OPTIMIZER))


def with_vocab(model: JoinedModel, num_rows: int) -> JoinedModel:
    """Return the model with a vocabulary of so many rows."""
    tensors = {
        name: tensor.with_rows(num_rows) if tensor.split is Split.VOCABULARY else tensor
        for name, tensor in model.tensors.items()
    }
    return replace(model, tensors=tensors)


def with_tied_head(model: JoinedModel) -> dict[str, JoinedTensor]:
    """Return the weights with the copy of the embedding that the last of several stages holds."""
    embedding, tensors = model.embedding, model.tensors
    if embedding is None or not model.is_tied:
        return tensors
    is_old = any(".query_key_value." in other for other in tensors)
    head_name = TIED_HEAD if is_old else embedding.name.removesuffix(EMBEDDING) + HEAD
    num_parts = head_name.count(".") + 1
    key_parts = (num_parts,) if len(embedding.key_parts) == 1 else (1,) * num_parts
    return {**tensors, head_name: replace(embedding, name=head_name, key_parts=key_parts, home=Home.LAST)}
