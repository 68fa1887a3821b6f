"""Where parameters lie in the flat buffers of Megatron's distributed optimizer.

A buffer holds the parameters of one type from the last to the first, each from a multiple of 64 elements on. It is cut
into buckets, at whose ends the padding for data-parallel ranks is left out of what is saved.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zenith_checkpoint.file_slice import Bytes, FlatPiece
from zenith_checkpoint.model_shape import count_of
from zenith_checkpoint.optimizer.state import LeftOutError
from zenith_checkpoint.split_rules import EMBEDDING, HEAD
from zenith_checkpoint.tensor_view import ITEM_BYTES, JoinedTensor, StoredTensor, TensorView, row_bytes

ALIGNMENT = 64
LEAST_BUCKET = 40_000_000
BUCKET_PER_RANK = 1_000_000

Sizes = Mapping[str, int]
"""The elements of each parameter, by name and in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Hold the places of some parameters, and the elements that are saved of all."""

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


def by_dtype(names: Iterable[str], tensors: Mapping[str, StoredTensor | JoinedTensor]) -> dict[str, list[str]]:
    """Return the parameters of each buffer: those of one type."""
    buffers: dict[str, list[str]] = {}
    for name in names:
        buffers.setdefault(tensors[name].dtype, []).append(name)
    return buffers


def sizes_of(names: Iterable[str], tensors: Mapping[str, StoredTensor | JoinedTensor]) -> dict[str, int]:
    """Return the elements of each parameter."""
    return {name: math.prod(tensors[name].shape) for name in names}


def part_of_flat(
    pieces: Iterable[FlatPiece], start: int, like: StoredTensor | JoinedTensor, dtype: str
) -> StoredTensor:
    """Return the tensor of a parameter's shape that begins at an element of a flat one."""
    width, item = row_bytes(like.shape, dtype), ITEM_BYTES[dtype]
    first, num_bytes = start * item, math.prod(like.shape) * item
    found = [cut for piece in pieces if (cut := piece.between(first, first + num_bytes)) is not None]
    slices = tuple(each for piece in found for each in piece.slices(width))
    if sum(each.num_rows * each.width for each in slices) != num_bytes:
        raise LeftOutError(f"its buffers do not hold {like.name!r} as a whole")
    view = TensorView(like.shape[0] if like.shape else 1, width, slices)
    path, offset = (slices[0].path, slices[0].offset) if slices else (found[0].place.path, 0)
    return StoredTensor(
        name=like.name, key_parts=like.key_parts, dtype=dtype, shape=like.shape, path=path, offset=offset, pieces=view
    )


@dataclass(frozen=True, slots=True)
class FlatView(TensorView):
    """Hold tensors as they lie in a flat buffer: one after the other, each from its place on, and zeros between."""

    parts: tuple[tuple[int, TensorView], ...] = ()
    """In bytes, in ascending order."""

    def blocks(self) -> Iterator[Bytes]:
        """Yield the bytes in order, no more than a block of them at once."""
        end = 0
        for start, part in self.parts:
            if start > end:
                yield np.zeros((1, start - end), np.uint8)
            yield from part.blocks()
            end = start + part.num_bytes
        if self.num_bytes > end:
            yield np.zeros((1, self.num_bytes - end), np.uint8)


def laid_flat(name: str, buckets: list[Bucket], tensors: Mapping[str, JoinedTensor]) -> JoinedTensor:
    """Return one flat tensor of all parameters in their places."""
    places, numel = coalesced(buckets), sum(bucket.numel for bucket in buckets)
    first = tensors[next(iter(places))]
    item = ITEM_BYTES[first.dtype]
    parts = tuple((start * item, tensors[each].mosaic) for each, start in places.items())
    view = FlatView(numel, item, (), parts)
    return replace(first, name=name, key_parts=(name.count(".") + 1,), shape=(numel,), mosaic=view)
