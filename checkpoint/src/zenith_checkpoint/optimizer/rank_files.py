"""Reads the optimizer's state of Megatron's legacy format, from each rank's file or its distrib_optim.pt."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from zenith_checkpoint.optimizer.flat_buffers import (
    bucket_numels,
    by_dtype,
    coalesced,
    in_buckets,
    part_of_flat,
    sizes_of,
)
from zenith_checkpoint.optimizer.state import (
    MASTER,
    MOMENTS,
    PARAM_GROUPS,
    SCALER,
    STEP,
    Groups,
    LeftOutError,
    OptimizerState,
    States,
    by_optimizer,
    decays,
    is_member,
    is_parameter,
    scheduler_of,
)
from zenith_checkpoint.output_place import optimizer_name
from zenith_checkpoint.reading.rank_folders import SHARDED_OPTIMIZER, RankFolders
from zenith_checkpoint.reading.shard_set import ShardSet
from zenith_checkpoint.reading.torch_file import TorchFile, read_torch_file
from zenith_checkpoint.tensors import ShardContent, StoredTensor
from zenith_tune.errors import UsageError

OPTIMIZER = "optimizer"
STATE = "state"
MASTERS = ("fp32_from_fp16_params", "fp32_from_fp16")
KINDS = (MASTER, *MOMENTS)

Weights = dict[str, StoredTensor]


def read_rank_states(folder: Path) -> OptimizerState:
    """Return the state of all ranks of a folder."""
    ranks = RankFolders.open(folder)
    if ranks.grid.whole_experts:
        raise LeftOutError("experts that no tensor rank splits have one that is not supported")
    is_sharded = any((path.parent / SHARDED_OPTIMIZER).is_file() for path in ranks.paths.values())
    files = {name: read_torch_file(path) for name, path in ranks.paths.items()}
    found: dict[str, list[States]] = {}
    for name, file in files.items():
        optimizers, chunks = _listed(file.content.get(OPTIMIZER)), ranks.contents[name]
        if is_sharded:
            path = file.path.parent / SHARDED_OPTIMIZER
            found[name] = _flat_states(path, len(optimizers), chunks)
        else:
            found[name] = _plain_states(file, optimizers, chunks)
    states: dict[tuple[int, int], States] = {}
    for kind in next(iter(found.values()))[0]:
        held = {
            name: [
                replace(chunk, tensors=each[kind]) for chunk, each in zip(ranks.contents[name], states_of, strict=True)
            ]
            for name, states_of in found.items()
        }
        for place, content in ranks.joined(held, are_weights=False).items():
            states.setdefault(place, {})[kind] = content.tensors
    first = next(iter(files.values()))
    tp, stages = (1 + max(place[axis] for place in states) for axis in (0, 1))
    return OptimizerState(
        tp=tp,
        num_stages=stages,
        states=states,
        groups=tuple(_groups(first, each) for each in _listed(first.content.get(OPTIMIZER))),
        is_sharded=is_sharded,
        bucket_numel=bucket_numels(next(iter(ranks.contents.values()))[0].args)[0],
        beside=scheduler_of(first.content),
    )


def read_named_states(shards: ShardSet) -> OptimizerState:
    """Return the state in the files that are named after ranks, each what torch's optimizer or Megatron's returns."""
    files: dict[tuple[int, int], TorchFile] = {}
    for ranks in shards.contents:
        path = shards.folder / optimizer_name(*ranks)
        if not path.is_file():
            raise UsageError(f"{path} is missing", hint="copy it too, or leave --with-optimizer out")
        files[ranks] = read_torch_file(path)
    optimizers = {ranks: _listed(_held(file.content)) for ranks, file in files.items()}
    states = {
        ranks: _plain_states(file, optimizers[ranks], [shards.contents[ranks]])[0] for ranks, file in files.items()
    }
    first = files[0, 0]
    return OptimizerState(
        tp=shards.tp,
        num_stages=shards.pp,
        states=states,
        groups=tuple(_groups(first, each) for each in optimizers[0, 0]),
        is_sharded=False,
        beside=scheduler_of(first.content),
    )


def _held(content: Any) -> Any:
    """Return the optimizers of a file, which may hold a scheduler next to them."""
    if not isinstance(content, dict) or OPTIMIZER not in content or any(key in content for key in MASTERS):
        return content
    return content[OPTIMIZER]


def _listed(found: Any) -> list[dict[str, Any]]:
    """Return the optimizers that Megatron chains: one, or a second one for experts."""
    listed = found if isinstance(found, list) else [found]
    if not all(isinstance(each, dict) for each in listed):
        raise LeftOutError("none was saved")
    if len(listed) > 2:
        raise LeftOutError(f"{len(listed)} optimizers share the weights in a way that is not supported")
    return listed


def _inner(optimizer: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = optimizer.get(OPTIMIZER, optimizer)
    if not isinstance(inner, dict) or PARAM_GROUPS not in inner:
        raise LeftOutError("it is none of torch's")
    return inner


def _groups(file: TorchFile, optimizer: Mapping[str, Any]) -> Groups:
    inner = _inner(optimizer)
    entry: Mapping[str, Any] = next(iter(inner.get(STATE, {}).values()), {})
    step = scalar(file, entry[STEP]) if STEP in entry else None
    return Groups.of(inner[PARAM_GROUPS], step, optimizer.get(SCALER))


def scalar(file: TorchFile, value: Any) -> float:
    """Return a number that may be a tensor of one."""
    if isinstance(value, int | float):
        return value
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise LeftOutError("its step is no number")
    return float(file.tensor(STEP, (1,), value).data.read())


def _plain_states(file: TorchFile, optimizers: list[dict[str, Any]], chunks: list[ShardContent]) -> list[States]:
    """Return the states of a rank for each of its virtual stages, by the numbers that torch gives to parameters."""
    found: list[States] = [{} for _ in chunks]
    weights = [{name: each for name, each in chunk.tensors.items() if is_parameter(name)} for chunk in chunks]
    for number, optimizer in enumerate(optimizers):
        names = [(at, name) for at, each in enumerate(weights) for name in by_optimizer(each, len(optimizers))[number]]
        for at, name, states in _numbered(optimizer, names, weights):
            for kind, value in states.items():
                stored = file.tensor(name, weights[at][name].key_parts, value)
                if stored.shape != weights[at][name].shape:
                    raise LeftOutError(f"its {kind} of {name!r} has the shape {list(stored.shape)}, the weight another")
                found[at].setdefault(kind, {})[name] = stored
    return found


def _numbered(
    optimizer: Mapping[str, Any], names: list[tuple[int, str]], weights: list[Weights]
) -> Iterator[tuple[int, str, dict[str, torch.Tensor]]]:
    """Yield the states of each parameter: groups with and without weight decay number them in the model's order."""
    inner = _inner(optimizer)
    masters = next((optimizer[key] for key in MASTERS if key in optimizer), None)
    groups = inner[PARAM_GROUPS]
    if len({decays(group) for group in groups}) != len(groups):
        raise LeftOutError("its groups are more than those with and without weight decay")
    for number, group in enumerate(groups):
        axes = {(at, name): len(weights[at][name].shape) for at, name in names}
        here = [each for each in names if is_member(group, each[1], axes[each], is_only=len(groups) == 1)]
        if len(here) != len(group["params"]):
            raise LeftOutError(f"a group has {len(group['params'])} parameters where the model has {len(here)}")
        for place, ((at, name), identity) in enumerate(zip(here, group["params"], strict=True)):
            entry = {key: each for key, each in inner[STATE].get(identity, {}).items() if key != STEP}
            if masters is not None:
                entry[MASTER] = masters[number][place]
            if sorted(entry) not in (sorted(MOMENTS), sorted(KINDS)):
                raise LeftOutError(f"it keeps {', '.join(sorted(entry)) or 'nothing'} for {name!r}, not what Adam does")
            yield at, name, entry


def _flat_states(path: Path, num_optimizers: int, chunks: list[ShardContent]) -> list[States]:
    """Return the states of a rank from its flat buffers; other ranks hold what is missing."""
    found: list[States] = [{kind: {} for kind in KINDS} for _ in chunks]
    if not path.is_file():
        return found
    file = read_torch_file(path)
    for number, buffers in enumerate(file.content if isinstance(file.content, list) else [file.content]):
        if buffers is None:
            continue
        if not buffers.get("buckets_coalesced"):
            raise LeftOutError("its buffers are those of a Megatron before 0.7")
        numbered = 0
        for at, chunk in enumerate(chunks):
            names = by_optimizer(filter(is_parameter, chunk.tensors), num_optimizers)[number]
            for dtype, held in by_dtype(names, chunk.tensors).items():
                flat = _buffer(buffers, numbered, dtype)
                numbered += 1
                for kind, tensors in _parts(file, flat, held, chunk).items():
                    found[at][kind] |= tensors
    return found


def _buffer(buffers: Mapping[Any, Any], number: int, dtype: torch.dtype) -> Mapping[str, Any]:
    """Return one buffer, which is named after the types of its parameters and gradients."""
    found = buffers.get(number)
    if not isinstance(found, dict) or len(found) != 1 or next(iter(found))[0] != dtype:
        raise LeftOutError(f"its buffer {number} is not one of {dtype} weights")
    flat = next(iter(found.values()))
    if not all(isinstance(flat.get(kind), torch.Tensor) for kind in KINDS):
        raise LeftOutError(f"its buffer {number} does not hold {', '.join(KINDS)}")
    return dict(flat)


def _parts(file: TorchFile, flat: Mapping[str, Any], names: list[str], chunk: ShardContent) -> States:
    """Return the part of each parameter, by the first way of cutting buckets that makes a buffer of its size."""
    sizes, numel = sizes_of(names, chunk.tensors), flat[MASTER].shape[0]
    for bucket_numel, is_shared in itertools.product(bucket_numels(chunk.args), (False, True)):
        buckets = in_buckets(sizes, bucket_numel, is_shared=is_shared)
        if sum(bucket.numel for bucket in buckets) != numel:
            continue
        places = coalesced(buckets)
        stored = {kind: file.tensor(kind, (1,), flat[kind]) for kind in KINDS}
        return {
            kind: {
                name: part_of_flat(each.data, start, chunk.tensors[name], file.path) for name, start in places.items()
            }
            for kind, each in stored.items()
        }
    raise LeftOutError(f"its buffer of {numel:,} elements is laid out in a way that is not known")
