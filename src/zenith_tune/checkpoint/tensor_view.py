"""A matrix of bytes that lies in pieces in files: cut and joined without reading, read block by block."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from zenith_tune.errors import UsageError
from zenith_tune.regular_file import open_regular

BLOCK_BYTES = 16 * 2**20
"""What is read at once: the memory of a merge, whatever the checkpoint's size, is a few of these."""

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Hold where rows of bytes lie in a file, each `stride` after the one before."""

    path: Path
    offset: int
    stride: int
    width: int

    def from_row(self, row: int) -> Piece:
        """Leave the rows before `row` out."""
        return replace(self, offset=self.offset + row * self.stride)

    def columns(self, start: int, stop: int) -> Piece:
        """Keep these bytes of each row."""
        return replace(self, offset=self.offset + start, width=stop - start)

    def read_into(self, block: Bytes) -> None:
        """Fill a block with as many rows as it has."""
        try:
            with open_regular(Path(os.path.realpath(self.path))) as file:
                if self.width == self.stride and block.flags.c_contiguous:
                    self._read(file.fileno(), block.reshape(-1), self.offset)
                elif self.width == self.stride:
                    whole = np.empty(block.shape, np.uint8)
                    self._read(file.fileno(), whole.reshape(-1), self.offset)
                    block[:] = whole
                else:
                    for row in range(len(block)):
                        self._read(file.fileno(), block[row], self.offset + row * self.stride)
        except OSError as error:
            raise UsageError(f"shard {self.path} cannot be read ({error.strerror or error}): check it") from None

    def _read(self, descriptor: int, target: Bytes, offset: int) -> None:
        done = 0
        while done < target.size:
            count = os.preadv(descriptor, [target[done:].data], offset + done)
            if count == 0:
                raise UsageError(f"shard {self.path} became shorter while it was read: copy it again")
            done += count


@dataclass(frozen=True, slots=True)
class Band:
    """Hold pieces side by side, all of `num_rows` rows."""

    num_rows: int
    pieces: tuple[Piece, ...]

    def rows(self, start: int, stop: int) -> Band:
        """Keep these rows."""
        return Band(stop - start, tuple(piece.from_row(start) for piece in self.pieces))

    def columns(self, start: int, stop: int) -> Band:
        """Keep these bytes of each row."""
        kept, left = [], 0
        for piece in self.pieces:
            low, high = max(start - left, 0), min(stop - left, piece.width)
            if low < high:
                kept.append(piece.columns(low, high))
            left += piece.width
        return Band(self.num_rows, tuple(kept))

    def read_into(self, block: Bytes) -> None:
        """Fill a block of the band's own shape."""
        ends = np.cumsum([0, *(piece.width for piece in self.pieces)])
        for piece, (start, stop) in zip(self.pieces, pairwise(ends), strict=True):
            piece.read_into(block[:, start:stop])


@dataclass(frozen=True, slots=True)
class Mosaic:
    """Hold bands on top of one another, all of one width: a tensor as rows of bytes, wherever they lie."""

    width: int
    bands: tuple[Band, ...]

    @classmethod
    def of_file(cls, path: Path, offset: int, num_rows: int, width: int) -> Mosaic:
        """Return a matrix that lies in one file, row after row."""
        return cls(width, (Band(num_rows, (Piece(path=path, offset=offset, stride=width, width=width),)),))

    @classmethod
    def stack(cls, parts: Iterable[Mosaic]) -> Mosaic:
        """Put matrices of one width on top of one another."""
        listed = list(parts)
        return cls(listed[0].width, tuple(band for part in listed for band in part.bands))

    @classmethod
    def beside(cls, parts: Iterable[Mosaic]) -> Mosaic:
        """Put matrices with the same number of rows, each of one band, side by side."""
        listed = list(parts)
        pieces = tuple(piece for part in listed for band in part.bands for piece in band.pieces)
        return cls(sum(part.width for part in listed), (Band(listed[0].num_rows, pieces),))

    @property
    def num_rows(self) -> int:
        """Rows of all bands."""
        return sum(band.num_rows for band in self.bands)

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole matrix."""
        return self.num_rows * self.width

    def rows(self, start: int, stop: int) -> Mosaic:
        """Keep these rows."""
        kept, top = [], 0
        for band in self.bands:
            low, high = max(start - top, 0), min(stop - top, band.num_rows)
            if low < high:
                kept.append(band.rows(low, high))
            top += band.num_rows
        return Mosaic(self.width, tuple(kept))

    def columns(self, start: int, stop: int) -> Mosaic:
        """Keep these bytes of each row."""
        return Mosaic(stop - start, tuple(band.columns(start, stop) for band in self.bands))

    def read(self) -> Bytes:
        """Return the whole matrix."""
        whole, top = np.empty((self.num_rows, self.width), np.uint8), 0
        for band in self.bands:
            band.read_into(whole[top : top + band.num_rows])
            top += band.num_rows
        return whole

    def blocks(self) -> Iterator[Bytes]:
        """Yield the matrix in blocks of whole rows, from top to bottom."""
        num_rows = self.num_rows if self.width else 0
        step = max(BLOCK_BYTES // max(self.width, 1), 1)
        for start in range(0, num_rows, step):
            yield self.rows(start, min(start + step, num_rows)).read()

    def equals(self, other: Mosaic) -> bool:
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
