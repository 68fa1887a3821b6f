"""Reads the optimizer's state of Megatron's torch_dist: tensors of the weights' shapes, or the buckets of each rank."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from zenith_checkpoint.joined_model import JoinedModel
from zenith_checkpoint.model_shape import count_of
from zenith_checkpoint.new_layout import NewLayout
from zenith_checkpoint.optimizer.flat_buffers import bucket_numels, by_dtype, by_numels, part_of_flat, sizes_of
from zenith_checkpoint.optimizer.rank_files import KINDS, OPTIMIZER, STATE, scalar
from zenith_checkpoint.optimizer.state import (
    MASTER,
    PARAM_GROUPS,
    SCALER,
    SHARDING_TYPE,
    Groups,
    LeftOutError,
    OptimizerState,
    States,
    by_optimizer,
    in_order,
    is_parameter,
    scheduler_of,
)
from zenith_checkpoint.reading.dist_folder import COMMON, DistFolder
from zenith_checkpoint.reading.shard_set import ShardSet
from zenith_checkpoint.reading.torch_file import TorchFile, read_torch_file
from zenith_checkpoint.split_rules import Numbering, expert_index, is_expert, spread
from zenith_checkpoint.tensors import JoinedTensor
from zenith_tune.errors import UsageError

MODEL_SPACE = ("fully_reshardable", "fully_sharded_model_space")
BUCKETS = "dp_reshardable"
_TENSOR = re.compile(r"(?:chained_[0-9]+\.)?optimizer\.state\.(\w+?)\.(.+)", re.DOTALL)
_BUCKET = re.compile(
    r"(?:chained_([0-9])\.)?optimizer\.distributed\.dp_group_idx_([0-9]{1,6})\.gbuf_idx_([0-9]{1,4})\.dtype_.*"
    r"\.bucket_idx_([0-9]{1,6})\.(\w+)"
)
_OBJECT = "{}optimizer.distributed.dp_group_idx_0.{}/shard_0_1"


def read_dist_state(shards: ShardSet, model: JoinedModel) -> OptimizerState:
    """Return the state of a folder of torch_dist, whose weights are those of a model."""
    assert shards.place is not None
    common = shards.place / COMMON
    dist = DistFolder.open(shards.place)
    if not common.is_file():
        raise LeftOutError("it was not saved by Megatron")
    file = read_torch_file(common)
    found = file.content.get(OPTIMIZER)
    if not isinstance(found, dict):
        raise LeftOutError("none was saved")
    chained = [found[number] for number in sorted(found)] if all(type(key) is int for key in found) else [found]
    kind = chained[0].get(SHARDING_TYPE)
    if kind == BUCKETS:
        return _of_buckets(dist, file, shards, model, len(chained))
    if kind not in (None, *MODEL_SPACE):
        raise LeftOutError(f"its format is {kind}")
    states: States = {}
    for state, tensors in _named(dist).items():
        states[MASTER if state == "fp32_param" else state] = dist.tensors(tensors, shards.args)
    return OptimizerState(
        tp=1,
        num_stages=1,
        states={(0, 0): states},
        groups=tuple(_groups(file, each) for each in chained),
        is_sharded=kind is not None,
        bucket_numel=bucket_numels(shards.args)[0],
        beside=scheduler_of(file.content),
    )


def _named(dist: DistFolder) -> dict[str, dict[str, str]]:
    """Return the keys of each kind of state, with the weight that each belongs to."""
    named: dict[str, dict[str, str]] = {}
    for key in dist.entries:
        if match := _TENSOR.fullmatch(key):
            named.setdefault(match[1], {})[key] = match[2]
    odd = next((state for state in named if state not in (*KINDS, "fp32_param")), None)
    if odd is not None or not named:
        raise LeftOutError(f"it keeps {odd!r}, which Adam does not" if odd else "none was saved")
    return named


def _groups(file: TorchFile, optimizer: Mapping[str, Any]) -> Groups:
    inner = optimizer.get(OPTIMIZER, optimizer)
    if not isinstance(inner, dict) or PARAM_GROUPS not in inner:
        raise LeftOutError("it is none of torch's")
    step = inner.get(STATE, {}).get("common_step")
    return Groups.of(inner[PARAM_GROUPS], None if step is None else scalar(file, step), optimizer.get(SCALER))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Degrees:
    """The layout whose ranks saved their buckets."""

    tp: int
    pp: int
    ep: int
    num_chunks: int

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> _Degrees:
        """Return the layout that Megatron's arguments tell."""
        names = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "expert_model_parallel_size")
        tp, pp, ep = (count_of(args, name) for name in names)
        if not tp or not pp:
            raise LeftOutError("Megatron's arguments, which tell the layout of its buckets, were not saved")
        if (count_of(args, "expert_tensor_parallel_size") or tp) != tp and (ep or 1) > 1:
            raise LeftOutError("experts that no tensor rank splits have buckets in an order that is not supported")
        return cls(tp=tp, pp=pp, ep=ep or 1, num_chunks=count_of(args, "virtual_pipeline_model_parallel_size") or 1)

    def group(self, t: int, p: int, e: int | None) -> int:
        """Return the number of the data-parallel group of a rank; that of its experts, where it has expert ranks."""
        return p * self.tp + t if e is None else (p * self.ep + e) * self.tp + t


def _of_buckets(
    dist: DistFolder, file: TorchFile, shards: ShardSet, model: JoinedModel, num_optimizers: int
) -> OptimizerState:
    """Return the state of the buckets that each rank of the layout at the time saved."""
    degrees = _Degrees.of(shards.args)
    num_stages = degrees.pp * degrees.num_chunks
    try:
        numbers = spread(model.numbers.num_layers, num_stages, None, Numbering.LOCAL)
        layout = NewLayout.of(model, source_tp=shards.tp, tp=degrees.tp, numbers=numbers)
    except UsageError as error:
        raise LeftOutError(f"the layout of its buckets is not known: {error}") from None
    buckets = _buckets(dist)
    states: dict[tuple[int, int], States] = {}
    for t, p in product(range(degrees.tp), range(degrees.pp)):
        chunks = [{each.name: each for each in layout.shard(t, v * degrees.pp + p)} for v in range(degrees.num_chunks)]
        for number in range(num_optimizers):
            for e in range(degrees.ep) if number else (None,):
                group = degrees.group(t, p, e)
                held = [_held(chunk, number, num_optimizers, e, degrees.ep) for chunk in chunks]
                for v, kind, name, tensor in _from_group(dist, buckets, (number, group), chunks, held):
                    states.setdefault((t, v * degrees.pp + p), {}).setdefault(kind, {})[name] = tensor
    prefixes = [f"chained_{number}." if num_optimizers > 1 else "" for number in range(num_optimizers)]
    return OptimizerState(
        tp=degrees.tp,
        num_stages=num_stages,
        states=states,
        groups=tuple(_group_objects(dist, prefix) for prefix in prefixes),
        is_sharded=True,
        bucket_numel=bucket_numels(shards.args)[0],
        beside=scheduler_of(file.content),
    )


def _buckets(dist: DistFolder) -> dict[tuple[int, int], dict[int, dict[int, dict[str, str]]]]:
    """Return the keys of all buckets: by optimizer and group, then by buffer, by number, and by kind of state."""
    found: dict[tuple[int, int], dict[int, dict[int, dict[str, str]]]] = {}
    for key in dist.entries:
        if match := _BUCKET.fullmatch(key):
            place = int(match[1] or 0), int(match[2])
            found.setdefault(place, {}).setdefault(int(match[3]), {}).setdefault(int(match[4]), {})[match[5]] = key
    return found


def _held(chunk: Mapping[str, JoinedTensor], number: int, num_optimizers: int, rank: int | None, ep: int) -> list[str]:
    """Return the parameters of an optimizer on an expert rank, in order."""
    names = by_optimizer(filter(is_parameter, chunk), num_optimizers)[number]
    if rank is not None:
        indices = {name: expert_index(name) or 0 for name in names if is_expert(name)}
        num_local = (1 + max(indices.values(), default=0)) // ep
        names = [name for name in names if indices[name] // num_local == rank]
    return in_order(names)


def _from_group(
    dist: DistFolder,
    buckets: Mapping[tuple[int, int], dict[int, dict[int, dict[str, str]]]],
    place: tuple[int, int],
    chunks: list[dict[str, JoinedTensor]],
    held: list[list[str]],
) -> Iterator[tuple[int, str, str, Any]]:
    """Yield the states that one data-parallel group saved: virtual stage, kind, name and tensor."""
    buffers = buckets.get(place, {})
    numbered = 0
    for v, (chunk, names) in enumerate(zip(chunks, held, strict=True)):
        for in_buffer in by_dtype(names, chunk).values():
            found = buffers.get(numbered, {})
            numbered += 1
            if sorted(found) != list(range(len(found))) or not all(set(each) == set(KINDS) for each in found.values()):
                raise LeftOutError(f"its buckets do not hold {', '.join(KINDS)}")
            stored = {kind: [dist.data(found[b][kind]) for b in range(len(found))] for kind in KINDS}
            cut = by_numels(sizes_of(in_buffer, chunk), [each.shape[0] for each in stored[MASTER]])
            for kind, (number, bucket) in product(KINDS, enumerate(cut)):
                for name, start in bucket.starts.items():
                    yield v, kind, name, part_of_flat(stored[kind][number], start, chunk[name], dist.folder)


def _group_objects(dist: DistFolder, prefix: str) -> Groups:
    """Return the groups of an optimizer that each data-parallel group saved alike."""
    key = _OBJECT.format(prefix, OPTIMIZER)
    if key not in dist.places:
        raise LeftOutError("its param_groups were not saved")
    scaler = _OBJECT.format(prefix, SCALER)
    settings = _unwrapped(dist.stored(key).content)
    return Groups.of(
        settings.get(PARAM_GROUPS), None, _unwrapped(dist.stored(scaler).content) if scaler in dist.places else None
    )


def _unwrapped(content: Any) -> Any:
    """Return an object that may have been saved in a list of one."""
    return content[0] if isinstance(content, list) and len(content) == 1 else content
