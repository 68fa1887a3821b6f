"""A matrix of bytes that lies in pieces in files: cut and joined without reading, read block by block."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from zenith_checkpoint.file_slice import BLOCK_BYTES, Bytes, FileSlice, FlatPiece, Record, Slice
from zenith_checkpoint.split_rules import Home, Split
from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True)
class TensorView:
    """Hold a tensor as rows of bytes, in slices that cover it, wherever they lie."""

    num_rows: int
    width: int
    slices: tuple[Slice, ...]

    @classmethod
    def of_file(cls, path: Path, offset: int, num_rows: int, width: int, record: Record | None = None) -> TensorView:
        """Return a matrix that lies in one file, row after row."""
        size = {"stride": width, "num_rows": num_rows, "width": width}
        return cls(num_rows, width, (FileSlice(path=path, offset=offset, top=0, left=0, record=record, **size),))

    @classmethod
    def stack(cls, parts: Iterable[TensorView]) -> TensorView:
        """Put matrices of one width on top of one another."""
        slices: list[Slice] = []
        top = width = 0
        for part in parts:
            slices += [replace(each, top=each.top + top) for each in part.slices]
            top, width = top + part.num_rows, part.width
        return cls(top, width, tuple(slices))

    @classmethod
    def beside(cls, parts: Iterable[TensorView]) -> TensorView:
        """Put matrices with the same number of rows side by side."""
        slices: list[Slice] = []
        left = num_rows = 0
        for part in parts:
            slices += [replace(each, left=each.left + left) for each in part.slices]
            left, num_rows = left + part.width, part.num_rows
        return cls(num_rows, left, tuple(slices))

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole matrix."""
        return self.num_rows * self.width

    def rows(self, start: int, stop: int) -> TensorView:
        """Keep these rows."""
        return self._cut(start, stop, 0, self.width)

    def columns(self, start: int, stop: int) -> TensorView:
        """Keep these bytes of each row."""
        return self._cut(0, self.num_rows, start, stop)

    def _cut(self, top: int, bottom: int, left: int, right: int) -> TensorView:
        cut = (each.cut(top, bottom, left, right) for each in self.slices)
        return TensorView(bottom - top, right - left, tuple(each for each in cut if each is not None))

    def folded(self, num_rows: int) -> TensorView:
        """Return one row, in which a matrix lies row after row, as that matrix."""
        width = self.width // num_rows
        slices = []
        for each in self.slices:
            if not isinstance(each, FileSlice) or each.left % width or each.width % width:
                raise UsageError("a tensor of several axes is cut along its last ones", hint="save it in one piece")
            rows = each.width // width
            slices.append(replace(each, stride=width, width=width, num_rows=rows, top=each.left // width, left=0))
        return TensorView(num_rows, width, tuple(slices))

    def read(self) -> Bytes:
        """Return the whole matrix."""
        whole = np.empty((self.num_rows, self.width), np.uint8)
        for each in self.slices:
            each.read_into(whole)
        return whole

    def blocks(self) -> Iterator[Bytes]:
        """Yield the matrix in blocks of whole rows, from top to bottom."""
        num_rows = self.num_rows if self.width else 0
        step = max(BLOCK_BYTES // max(self.width, 1), 1)
        for start in range(0, num_rows, step):
            yield self.rows(start, min(start + step, num_rows)).read()

    def equals(self, other: TensorView) -> bool:
        """Tell whether both hold the same bytes."""
        if (self.num_rows, self.width) != (other.num_rows, other.width):
            return False
        return all(np.array_equal(a, b) for a, b in zip(self.blocks(), other.blocks(), strict=True))

    def is_constant(self, item_bytes: int) -> bool:
        """Tell whether all elements are the same, as in a bias that was never trained."""
        first: Bytes | None = None
        for block in self.blocks():
            items = block.reshape(-1, item_bytes)
            first = items[0].copy() if first is None else first
            if not (items == first).all():
                return False
        return True


Order = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TransposedSlice(Slice):
    """Hold a rectangle whose rows are columns of another matrix, and whose columns are rows of it."""

    source: TensorView
    item_bytes: int
    source_columns: Order
    """Which column of the source each row is."""
    source_rows: Order
    """Which row of the source each column is."""

    def _part(self, rows: slice, columns: slice) -> TransposedSlice:
        items = slice(columns.start // self.item_bytes, columns.stop // self.item_bytes)
        return replace(self, source_columns=self.source_columns[rows], source_rows=self.source_rows[items])

    def read_into(self, matrix: Bytes) -> None:
        """Fill its place in the matrix."""
        low, high = int(self.source_columns.min()), int(self.source_columns.max()) + 1
        block = self.source.columns(low * self.item_bytes, high * self.item_bytes).read()
        items = block.reshape(len(block), high - low, self.item_bytes)[self.source_rows][:, self.source_columns - low]
        turned = items.transpose(1, 0, 2).reshape(self.num_rows, self.width)
        matrix[self.top : self.top + self.num_rows, self.left : self.left + self.width] = turned


def transposed(
    source: TensorView, item_bytes: int, *, columns: Order | None = None, rows: Order | None = None
) -> TensorView:
    """Return a matrix with rows and columns exchanged: all of them, or those of the source that are given, in order."""
    columns = np.arange(source.width // item_bytes) if columns is None else columns
    rows = np.arange(source.num_rows) if rows is None else rows
    width = len(rows) * item_bytes
    whole = TransposedSlice(
        source=source,
        item_bytes=item_bytes,
        source_columns=columns,
        source_rows=rows,
        num_rows=len(columns),
        width=width,
    )
    return TensorView(len(columns), width, (whole,))


_DTYPES = {
    "BOOL": ("bool", 1),
    "U8": ("uint8", 1),
    "I8": ("int8", 1),
    "F8_E4M3": ("float8_e4m3fn", 1),
    "F8_E5M2": ("float8_e5m2", 1),
    "F8_E8M0": ("float8_e8m0fnu", 1),
    "U16": ("uint16", 2),
    "I16": ("int16", 2),
    "F16": ("float16", 2),
    "BF16": ("bfloat16", 2),
    "U32": ("uint32", 4),
    "I32": ("int32", 4),
    "F32": ("float32", 4),
    "U64": ("uint64", 8),
    "I64": ("int64", 8),
    "F64": ("float64", 8),
    "C64": ("complex64", 8),
}
TORCH_NAMES = {name: torch_name for name, (torch_name, _) in _DTYPES.items()}
ITEM_BYTES = {name: num_bytes for name, (_, num_bytes) in _DTYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Hold one tensor of a shard, not read yet."""

    name: str
    key_parts: tuple[int, ...]
    """How many of the name's dotted parts make up each key of the nested dictionaries that it was found in."""
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    record: Record | None = None
    """The entry of a zip file that it lies in."""
    pieces: TensorView | None = None
    """Its places, where it does not lie in one."""

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def mosaic(self) -> TensorView:
        """The tensor as rows of bytes, one for each index of its first dimension."""
        if self.pieces is not None:
            return self.pieces
        num_rows = self.shape[0] if self.shape else 1
        return TensorView.of_file(self.path, self.offset, num_rows, row_bytes(self.shape, self.dtype), self.record)

    def flat(self, start: int = 0) -> FlatPiece:
        """Return its bytes, which lie in one file, as those of a flat tensor from a place on."""
        (whole,) = self.mosaic.slices
        assert isinstance(whole, FileSlice)  # what lies in one file
        return FlatPiece(start=start, place=replace(whole, num_rows=1, width=self.num_bytes, stride=self.num_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContent:
    """Hold what one shard says of itself."""

    name: str
    """What a person calls it: its file, or its folder where all files have one name."""
    tensors: dict[str, StoredTensor]
    wrapper: str | None = None
    """The key that the weights were found under, where a .bin holds more than weights."""
    plain: dict[str, Any] = field(default_factory=dict)
    """Numbers and words beside the weights, such as an iteration."""
    args: dict[str, Any] = field(default_factory=dict)
    """Megatron-LM's arguments, where it saved them: the plain ones."""
    metadata: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    """What is neither a weight nor plain, such as an optimizer's state."""


def row_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Return the bytes of one index of a tensor's first dimension.

    >>> row_bytes((4, 3), "BF16"), row_bytes((4,), "F32"), row_bytes((), "F32")
    (6, 4, 4)
    """
    return math.prod(shape[1:]) * ITEM_BYTES[dtype]


def describe(dtype: str, shape: tuple[int, ...]) -> str:
    """Write a tensor's type and shape for a person.

    >>> describe("BF16", (4, 3))
    'BF16 [4, 3]'
    """
    return f"{dtype} {list(shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTensor:
    """Hold a weight as one tensor that lies in the shards of all ranks."""

    name: str
    key_parts: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    mosaic: TensorView
    split: Split
    home: Home

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.mosaic.num_bytes

    def with_rows(self, num_rows: int) -> JoinedTensor:
        """Return the tensor with fewer rows, or with its last one repeated, as Megatron-LM's own converter pads."""
        have = self.shape[0]
        mosaic = self.mosaic.rows(0, min(have, num_rows))
        if num_rows > have:
            mosaic = TensorView.stack([mosaic, *[self.mosaic.rows(have - 1, have)] * (num_rows - have)])
        return replace(self, mosaic=mosaic, shape=(num_rows, *self.shape[1:]))

    def part(self, rank: int, tp: int) -> JoinedTensor:
        """Return what one of `tp` ranks holds of the tensor."""
        if self.split is Split.WHOLE or tp == 1:
            return self
        axis = 1 if self.split is Split.ROW else 0
        halves = 2 if self.split is Split.GATED else 1
        size, rest = divmod(self.shape[axis], halves * tp)
        if rest:
            problem = f"{self.name!r}, {describe(self.dtype, self.shape)}, cannot be split over {tp} tensor ranks"
            raise UsageError(f"{problem}: {self.shape[axis] // halves} is no multiple of {tp}; choose another --tp")
        shape = tuple(halves * size if i == axis else each for i, each in enumerate(self.shape))
        return replace(self, shape=shape, mosaic=self._cut(rank, size, halves * tp * size))

    def _cut(self, rank: int, size: int, whole: int) -> TensorView:
        start, stop = rank * size, (rank + 1) * size
        if self.split is Split.ROW:
            column_bytes = self.mosaic.width // whole
            return self.mosaic.columns(start * column_bytes, stop * column_bytes)
        if self.split is Split.GATED:
            half = whole // 2
            return TensorView.stack([self.mosaic.rows(start, stop), self.mosaic.rows(half + start, half + stop)])
        return self.mosaic.rows(start, stop)


def join_ranks(ranks: list[StoredTensor], name: str, split: Split, home: Home) -> JoinedTensor:
    """Return one tensor from what each tensor rank holds; whole ones must be the same on all ranks."""
    first, parts = ranks[0], [each.mosaic for each in ranks]
    _refuse_few_axes(first, split)
    shape, mosaic = first.shape, parts[0]
    if len(ranks) > 1 and split is Split.WHOLE:
        refuse_differences(ranks)
    elif len(ranks) > 1:
        _refuse_copies(ranks)
        axis = 1 if split is Split.ROW else 0
        shape = tuple(len(ranks) * size if i == axis else size for i, size in enumerate(shape))
        if split is Split.ROW:
            mosaic = TensorView.beside(parts)
        elif split is Split.GATED:
            half = first.shape[0] // 2
            gates, ups = [part.rows(0, half) for part in parts], [part.rows(half, 2 * half) for part in parts]
            mosaic = TensorView.stack([*gates, *ups])
        else:
            mosaic = TensorView.stack(parts)
    return JoinedTensor(
        name=name, key_parts=first.key_parts, dtype=first.dtype, shape=shape, mosaic=mosaic, split=split, home=home
    )


def _refuse_few_axes(tensor: StoredTensor, split: Split) -> None:
    needed = {Split.WHOLE: 0, Split.ROW: 2}.get(split, 1)
    if len(tensor.shape) < needed:
        problem = f"{tensor.name!r} must have {needed} or more dimensions to be split by {split.value}"
        raise UsageError(f"{problem}, but is {describe(tensor.dtype, tensor.shape)}: it is not Megatron's")


def refuse_differences(ranks: list[StoredTensor], kind: str = "tensor") -> None:
    """Refuse copies of a weight that are not the same."""
    for rank, other in enumerate(ranks[1:], start=1):
        if other != ranks[0] and not ranks[0].mosaic.equals(other.mosaic):
            problem = f"{other.name!r} must be the same on all {kind} ranks, but {ranks[0].path} and "
            hint = "the shards are of different checkpoints, or its name is one that no rule splits"
            raise UsageError(f"{problem}{other.path} (rank {rank}) differ", hint=hint)


def _refuse_copies(ranks: list[StoredTensor]) -> None:
    """Refuse a weight that is the same on all ranks: joining copies would make a model of double width."""
    first = ranks[0]
    if len(first.shape) < 2 or not all(first.mosaic.equals(other.mosaic) for other in ranks[1:]):
        return
    if not first.mosaic.is_constant(ITEM_BYTES[first.dtype]):
        problem = f"{first.name!r} must be split over {len(ranks)} tensor ranks, but all of them hold the same"
        hint = "a shard was copied under another name, or (experts only) give --whole-experts"
        raise UsageError(problem, hint=hint)
