"""Where bytes lie in a file: rectangles of a matrix, and the entries of a zip file with their checksums."""

from __future__ import annotations

import abc
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from zenith_tune.errors import UsageError
from zenith_tune.study.files import open_regular

BLOCK_BYTES = 16 * 2**20
"""What is read at once: the memory of a merge, whatever the checkpoint's size, is a few of these."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
MAX_READ_BYTES = 2**30
"""More than any pickle beside the tensors has."""


@dataclass(slots=True, kw_only=True)
class Record:
    """Hold one entry of a zip file and the checksum that stands beside it; its bytes are checked once, before use."""

    path: Path
    offset: int
    num_bytes: int
    crc: int
    """0 where whoever saved it left checksums out."""
    is_checked: bool = field(default=False, repr=False)

    def check(self) -> None:
        """Refuse bytes that are not those that were saved; the read that follows finds them in the page cache."""
        if self.is_checked or not self.crc:
            return
        found, rest = 0, self.num_bytes
        with open_regular(Path(os.path.realpath(self.path))) as file:
            file.seek(self.offset)
            while rest and (block := file.read(min(BLOCK_BYTES, rest))):
                found, rest = zlib.crc32(block, found), rest - len(block)
        if found != self.crc:
            problem = f"shard {self.path} is damaged: the checksum of {self.num_bytes:,} bytes at {self.offset:,} is "
            raise UsageError(f"{problem}{found:08x}, but was {self.crc:08x} when saved", hint="copy or save it again")
        self.is_checked = True

    def read(self) -> bytes:
        """Return all of its bytes."""
        if self.num_bytes > MAX_READ_BYTES:
            raise UsageError(f"shard {self.path} has {self.num_bytes:,} bytes beside its tensors", hint="save it again")
        self.check()
        with open_regular(Path(os.path.realpath(self.path))) as file:
            file.seek(self.offset)
            return file.read(self.num_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice(abc.ABC):
    """Hold a rectangle of a matrix of bytes, wherever they come from."""

    top: int = 0
    """Its first row in the matrix."""
    left: int = 0
    num_rows: int
    width: int

    def cut(self, top: int, bottom: int, left: int, right: int) -> Self | None:
        """Return what lies between these rows and columns of the matrix, counted from there."""
        first, last = max(self.top, top), min(self.top + self.num_rows, bottom)
        start, stop = max(self.left, left), min(self.left + self.width, right)
        if first >= last or start >= stop:
            return None
        part = self._part(slice(first - self.top, last - self.top), slice(start - self.left, stop - self.left))
        return replace(part, top=first - top, left=start - left, num_rows=last - first, width=stop - start)

    @abc.abstractmethod
    def _part(self, rows: slice, columns: slice) -> Self:
        """Return the slice with the bytes of these rows and columns of it; its place is set by the caller."""

    @abc.abstractmethod
    def read_into(self, matrix: Bytes) -> None:
        """Fill its place in the matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlice(Slice):
    """Hold where a rectangle of a matrix lies in a file: rows of bytes, each `stride` after the one before."""

    path: Path
    offset: int
    stride: int
    record: Record | None = None
    """What its checksum covers."""

    def _part(self, rows: slice, columns: slice) -> FileSlice:
        return replace(self, offset=self.offset + rows.start * self.stride + columns.start)

    def read_into(self, matrix: Bytes) -> None:
        """Fill its place in the matrix."""
        block = matrix[self.top : self.top + self.num_rows, self.left : self.left + self.width]
        try:
            if self.record is not None:
                self.record.check()
            with open_regular(Path(os.path.realpath(self.path))) as file:
                if self.width == self.stride:
                    # One call for all rows, through a copy where they do not lie together in memory.
                    whole = block if block.flags.c_contiguous else np.empty(block.shape, np.uint8)
                    self._read(file.fileno(), whole.reshape(-1), self.offset)
                    if whole is not block:
                        block[:] = whole
                else:
                    for row in range(self.num_rows):
                        self._read(file.fileno(), block[row], self.offset + row * self.stride)
        except OSError as error:
            raise UsageError(f"shard {self.path} cannot be read ({error.strerror or error})", hint="check it") from None

    def _read(self, descriptor: int, target: Bytes, offset: int) -> None:
        done = 0
        while done < target.size:
            count = os.preadv(descriptor, [target[done:].data], offset + done)
            if count == 0:
                raise UsageError(f"shard {self.path} became shorter while it was read", hint="copy it again")
            done += count


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatPiece:
    """Hold bytes of a flat tensor that lie in one file."""

    start: int
    """In bytes of the flat tensor."""
    place: FileSlice
    """One row of bytes."""

    def between(self, start: int, end: int) -> FlatPiece | None:
        """Return what lies between two places, counted from the first."""
        first, last = max(start, self.start), min(end, self.start + self.place.width)
        if first >= last:
            return None
        place = replace(self.place, offset=self.place.offset + first - self.start, width=last - first)
        return FlatPiece(start=first - start, place=place)

    def slices(self, width: int, *, top: int = 0, left: int = 0) -> Iterator[FileSlice]:
        """Yield the rectangles that it fills of a matrix with rows of so many bytes: at most three."""
        at, end = self.start, self.start + self.place.width
        while at < end:
            row, column = divmod(at, width)
            num_rows = max((end - at) // width, 1) if column == 0 else 1
            size = min(width - column, end - at)
            yield replace(
                self.place,
                offset=self.place.offset + at - self.start,
                stride=width,
                num_rows=num_rows,
                width=size,
                top=top + row,
                left=left + column,
            )
            at += num_rows * size
