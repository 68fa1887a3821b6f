"""Where parameters lie in the flat buffers of Megatron's distributed optimizer.

A buffer holds the parameters of one type from the last to the first, each from a multiple of 64 elements on. It is cut
into buckets, at whose ends the padding for data-parallel ranks is left out of what is saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from zenith_checkpoint.lazy_tensor import LazyTensor
from zenith_checkpoint.model_shape import count_of
from zenith_checkpoint.optimizer.state import LeftOutError
from zenith_checkpoint.split_rules import EMBEDDING, HEAD
from zenith_checkpoint.tensors import JoinedTensor, StoredTensor

ALIGNMENT = 64
LEAST_BUCKET = 40_000_000
BUCKET_PER_RANK = 1_000_000

Sizes = Mapping[str, int]
"""The elements of each parameter, by name and in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The places of some parameters in a buffer, and the number of elements that are saved."""

    starts: dict[str, int]
    numel: int


def _aligned(number: int) -> int:
    return -(-number // ALIGNMENT) * ALIGNMENT


def in_buckets(sizes: Sizes, bucket_numel: int | None, *, is_shared: bool) -> list[Bucket]:
    """Return the buckets that Megatron makes of parameters; tied tables of several stages have one of their own."""
    buckets: list[Bucket] = []
    starts: dict[str, int] = {}
    end = 0
    for name, numel in reversed(list(sizes.items())):
        start = _aligned(end)
        is_alone = is_shared and name.endswith((EMBEDDING, HEAD))
        if is_alone and starts:
            buckets.append(Bucket(starts=starts, numel=start))
            starts, start = {}, 0
        starts[name], end = start, start + numel
        if is_alone or (bucket_numel is not None and end >= bucket_numel):
            buckets.append(Bucket(starts=starts, numel=end))
            starts, end = {}, 0
    return [*buckets, Bucket(starts=starts, numel=end)] if starts else buckets


def by_numels(sizes: Sizes, numels: Sequence[int]) -> list[Bucket]:
    """Return the buckets of parameters where the elements of each are known."""
    buckets: list[Bucket] = []
    starts: dict[str, int] = {}
    end = 0
    for name, numel in reversed(list(sizes.items())):
        expected = numels[len(buckets)] if len(buckets) < len(numels) else -1
        if starts and _aligned(end) == expected:  # the next parameter has a bucket of its own
            buckets.append(Bucket(starts=starts, numel=expected))
            starts, end = {}, 0
            expected = numels[len(buckets)] if len(buckets) < len(numels) else -1
        starts[name], end = _aligned(end), _aligned(end) + numel
        if end == expected:
            buckets.append(Bucket(starts=starts, numel=end))
            starts, end = {}, 0
    if starts or [each.numel for each in buckets] != list(numels):
        raise LeftOutError(f"its buckets of {', '.join(map(str, numels[:4]))} elements do not fit the weights")
    return buckets


def coalesced(buckets: Iterable[Bucket]) -> dict[str, int]:
    """Return the places of all parameters where bucket follows bucket."""
    places: dict[str, int] = {}
    first = 0
    for bucket in buckets:
        places |= {name: first + start for name, start in bucket.starts.items()}
        first += bucket.numel
    return places


def bucket_numels(args: Mapping[str, Any]) -> list[int | None]:
    """Return after how many elements a new bucket may begin, by Megatron's arguments, the likeliest first."""
    dp, cp = count_of(args, "data_parallel_size") or 1, count_of(args, "context_parallel_size") or 1
    defaults = [max(LEAST_BUCKET, BUCKET_PER_RANK * ranks) for ranks in (dp, dp * cp)]
    stated = count_of(args, "ddp_bucket_size")
    overlapping = [stated] if stated else defaults
    return [*overlapping, None] if args.get("overlap_grad_reduce") else [None, *overlapping]


def by_dtype(names: Iterable[str], tensors: Mapping[str, StoredTensor | JoinedTensor]) -> dict[torch.dtype, list[str]]:
    """Return the parameters of each buffer: those of one type."""
    buffers: dict[torch.dtype, list[str]] = {}
    for name in names:
        buffers.setdefault(tensors[name].dtype, []).append(name)
    return buffers


def sizes_of(names: Iterable[str], tensors: Mapping[str, StoredTensor | JoinedTensor]) -> dict[str, int]:
    """Return the elements of each parameter."""
    return {name: math.prod(tensors[name].shape) for name in names}


def part_of_flat(buffer: LazyTensor, start: int, like: StoredTensor | JoinedTensor, path: Path) -> StoredTensor:
    """Return the tensor of a parameter's shape that begins at an element of a flat one."""
    end = start + math.prod(like.shape)
    if end > buffer.shape[0]:
        raise LeftOutError(f"its buffers do not hold {like.name!r} as a whole")
    data = buffer.part(0, start, end).reshaped(like.shape)
    return StoredTensor(name=like.name, key_parts=like.key_parts, path=path, data=data)


def laid_flat(name: str, buckets: list[Bucket], tensors: Mapping[str, JoinedTensor]) -> JoinedTensor:
    """Return one flat tensor of all parameters in their places, with zeros between them."""
    places, numel = coalesced(buckets), sum(bucket.numel for bucket in buckets)
    first = tensors[next(iter(places))]
    parts, end = list[LazyTensor](), 0
    for each, start in places.items():
        parts += [LazyTensor.zeros((start - end,), first.dtype), tensors[each].data.flattened()]
        end = start + math.prod(tensors[each].shape)
    parts.append(LazyTensor.zeros((numel - end,), first.dtype))
    return replace(first, name=name, key_parts=(name.count(".") + 1,), data=LazyTensor.cat(parts))
