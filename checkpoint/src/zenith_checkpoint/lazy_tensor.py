"""Tensors that lie in mapped files: cut, joined and turned without reading, then read a box at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

BLOCK_BYTES = 16 * 2**20
"""Bytes read at once: the memory of a merge, whatever the checkpoint's size, is a few of these."""

Box = tuple[slice, ...]
"""A start and a stop for each axis."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LazyTensor:
    """A tensor by its shape and by what reads a box of it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read_box: Callable[[Box], torch.Tensor]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> LazyTensor:
        """Return a tensor of torch's, which may be mapped from a file."""
        return cls(shape=tuple(tensor.shape), dtype=tensor.dtype, read_box=tensor.__getitem__)

    @classmethod
    def zeros(cls, shape: tuple[int, ...], dtype: torch.dtype) -> LazyTensor:
        """Return a tensor of zeros."""
        return cls(
            shape=shape, dtype=dtype, read_box=lambda box: torch.zeros([b.stop - b.start for b in box], dtype=dtype)
        )

    @classmethod
    def assembled(cls, shape: tuple[int, ...], pieces: Mapping[tuple[int, ...], LazyTensor]) -> LazyTensor:
        """Return a tensor that pieces cover, each from its offsets on."""
        dtype = next(iter(pieces.values())).dtype

        def read(box: Box) -> torch.Tensor:
            whole = torch.empty([b.stop - b.start for b in box], dtype=dtype)
            for offsets, piece in pieces.items():
                starts = [max(b.start, at) for b, at in zip(box, offsets, strict=True)]
                stops = [min(b.stop, at + size) for b, at, size in zip(box, offsets, piece.shape, strict=True)]
                if all(start < stop for start, stop in zip(starts, stops, strict=True)):
                    inner = _box(starts, stops, offsets)
                    whole[_box(starts, stops, [b.start for b in box])] = piece.read_box(inner)
            return whole

        return cls(shape=shape, dtype=dtype, read_box=read)

    @classmethod
    def cat(cls, parts: Sequence[LazyTensor], axis: int = 0) -> LazyTensor:
        """Join tensors along an axis."""
        first = parts[0]
        ends = list(itertools.accumulate(each.shape[axis] for each in parts))
        zeros, behind = (0,) * axis, (0,) * (len(first.shape) - axis - 1)
        # Tensors without elements cover nothing, and would share their offsets with the next.
        pieces = {
            (*zeros, end - each.shape[axis], *behind): each
            for end, each in zip(ends, parts, strict=True)
            if each.shape[axis] or len(parts) == 1
        }
        return cls.assembled((*first.shape[:axis], ends[-1], *first.shape[axis + 1 :]), pieces)

    @classmethod
    def stack(cls, parts: Sequence[LazyTensor]) -> LazyTensor:
        """Put tensors of one shape along a new first axis."""

        def leading(part: LazyTensor) -> LazyTensor:
            return replace(part, shape=(1, *part.shape), read_box=lambda box: part.read_box(box[1:])[None])

        return cls.cat([leading(each) for each in parts])

    @classmethod
    def interleaved(cls, parts: Sequence[LazyTensor]) -> LazyTensor:
        """Let the rows of tensors take turns."""
        num = len(parts)

        def read(box: Box) -> torch.Tensor:
            start, stop = box[0].start, box[0].stop
            whole = torch.empty([b.stop - b.start for b in box], dtype=parts[0].dtype)
            for turn, part in enumerate(parts):
                first, last = -(-(start - turn) // num), -(-(stop - turn) // num)
                if first < last:
                    whole[first * num + turn - start :: num] = part.read_box((slice(first, last), *box[1:]))
            return whole

        return cls(shape=(num * parts[0].shape[0], *parts[0].shape[1:]), dtype=parts[0].dtype, read_box=read)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        item_bytes: int = self.dtype.itemsize
        return math.prod(self.shape) * item_bytes

    def part(self, axis: int, start: int, stop: int, step: int = 1) -> LazyTensor:
        """Return what lies between two places of an axis, or each `step`-th of it."""

        def read(box: Box) -> torch.Tensor:
            first, last = start + box[axis].start * step, start + (box[axis].stop - 1) * step + 1
            found = self.read_box((*box[:axis], slice(first, last), *box[axis + 1 :]))
            return found[(slice(None),) * axis + (slice(None, None, step),)]

        size = len(range(start, stop, step))
        return replace(self, shape=(*self.shape[:axis], size, *self.shape[axis + 1 :]), read_box=read)

    def select(self, index: int) -> LazyTensor:
        """Return what lies at an index of the first axis."""
        at = slice(index, index + 1)
        return replace(self, shape=self.shape[1:], read_box=lambda box: self.read_box((at, *box))[0])

    def transposed(self) -> LazyTensor:
        """Return the tensor with its axes in reverse order."""
        return replace(
            self, shape=self.shape[::-1], read_box=lambda box: self.read_box(box[::-1]).permute(*range(len(box))[::-1])
        )

    def flattened(self) -> LazyTensor:
        """Return the elements as one row; each reading reads whole indices of the first axis."""
        if len(self.shape) < 2:
            return self.reshaped((math.prod(self.shape),))
        width = math.prod(self.shape[1:])

        def read(box: Box) -> torch.Tensor:
            first = box[0].start // max(width, 1)
            rows = slice(first, -(-box[0].stop // max(width, 1)))
            whole = self.read_box((rows, *map(slice, [0] * len(self.shape[1:]), self.shape[1:]))).reshape(-1)
            return whole[box[0].start - first * width : box[0].stop - first * width]

        return replace(self, shape=(math.prod(self.shape),), read_box=read)

    def reshaped(self, shape: tuple[int, ...]) -> LazyTensor:
        """Return a row of elements in another shape."""
        width = math.prod(shape[1:])

        def read(box: Box) -> torch.Tensor:
            if not self.shape or not shape:
                return self.read().reshape(shape)[box]
            rows = self.read_box((slice(box[0].start * width, box[0].stop * width),))
            return rows.reshape(-1, *shape[1:])[(slice(None), *box[1:])] if width else rows.reshape(-1, *shape[1:])

        return replace(self, shape=shape, read_box=read)

    def read(self) -> torch.Tensor:
        """Return the whole tensor."""
        return self.read_box(tuple(slice(0, size) for size in self.shape))

    def blocks(self) -> Iterator[torch.Tensor]:
        """Yield the bytes in order, in blocks of whole indices of the first axis."""
        if not self.num_bytes:
            return
        size, *others = self.shape or (1,)
        step = max(BLOCK_BYTES * size // self.num_bytes, 1)
        inner = tuple(slice(0, other) for other in others)
        for start in range(0, size, step):
            box = (slice(start, min(start + step, size)), *inner) if self.shape else ()
            yield as_bytes(self.read_box(box))

    def equals(self, other: LazyTensor) -> bool:
        """Tell whether both have the same type, shape and bytes."""
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return False
        return all(torch.equal(mine, theirs) for mine, theirs in zip(self.blocks(), other.blocks(), strict=True))

    def is_constant(self) -> bool:
        """Tell whether all elements are the same, as in a bias that was never trained."""
        blocks = (block.reshape(-1, self.dtype.itemsize) for block in self.blocks())
        first: torch.Tensor | None = None
        for block in blocks:
            first = block[0].clone() if first is None else first
            if not bool((block == first).all()):
                return False
        return True


def _box(starts: Sequence[int], stops: Sequence[int], origin: Sequence[int]) -> Box:
    return tuple(slice(start - at, stop - at) for start, stop, at in zip(starts, stops, origin, strict=True))


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor, in order."""
    # One element counts as contiguous whatever its stride, which a view as bytes would refuse.
    return tensor.contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)
