"""Weights that are stored in MXFP4, read as bf16.

Two values of 4 bits (E2M1) lie in a byte, the first in its lower half, and 32 of them share a scale of 8 bits (E8M0):
the microscaling formats of the Open Compute Project. GPT-OSS is published so; a row of blocks is one of a projection.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from zenith_checkpoint.file_slice import Bytes, Slice
from zenith_checkpoint.tensor_view import ITEM_BYTES, Order, StoredTensor, TensorView, describe
from zenith_tune.errors import UsageError

DTYPE = "BF16"
BLOCK_ITEMS = 32
BLOCK_BYTES = BLOCK_ITEMS // 2
ITEM = ITEM_BYTES[DTYPE]
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
EXPONENT_BIAS = 127


@functools.cache
def _pairs() -> np.ndarray[tuple[int, int], np.dtype[np.uint16]]:
    """Return the two values in bf16 that a byte holds, by its scale and itself in one number of 16 bits."""
    values = np.array([*MAGNITUDES, *(-each for each in MAGNITUDES)], np.float32)
    with np.errstate(over="ignore"):  # by the last scale, which no weights have
        scaled = np.ldexp(values, np.arange(256)[:, None] - EXPONENT_BIAS)
    # Two significant bits: what is cut off of the lower half is zero.
    items = (scaled.view(np.uint32) >> 16).astype(np.uint16)
    codes = np.arange(256)
    return np.stack([items[:, codes & 15], items[:, codes >> 4]], axis=-1).reshape(-1, 2)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DequantizedSlice(Slice):
    """Hold a rectangle in bf16 of a matrix that is stored in MXFP4."""

    blocks: TensorView
    scales: TensorView
    source_rows: Order
    """Which row of the source each row is."""
    first_item: int = 0
    """Its first column, in values of the source."""

    def _part(self, rows: slice, columns: slice) -> DequantizedSlice:
        return replace(self, source_rows=self.source_rows[rows], first_item=self.first_item + columns.start // ITEM)

    def read_into(self, matrix: Bytes) -> None:
        """Fill its place in the matrix."""
        low, high = int(self.source_rows.min()), int(self.source_rows.max()) + 1
        num_items = self.width // ITEM
        first, last = self.first_item // BLOCK_ITEMS, -(-(self.first_item + num_items) // BLOCK_ITEMS)
        order = self.source_rows - low
        blocks = self.blocks.rows(low, high).columns(first * BLOCK_BYTES, last * BLOCK_BYTES).read()[order]
        scales = self.scales.rows(low, high).columns(first, last).read()[order]
        codes = scales[..., None].astype(np.uint16) << 8 | blocks.reshape(*scales.shape, BLOCK_BYTES)
        start = self.first_item - first * BLOCK_ITEMS
        items = _pairs()[codes].reshape(self.num_rows, -1)[:, start : start + num_items]
        matrix[self.top : self.top + self.num_rows, self.left : self.left + self.width] = items.view(np.uint8)


def dequantized(blocks: StoredTensor, scales: StoredTensor, *, row_step: int) -> list[TensorView]:
    """Return the matrix of each expert in bf16: of every `row_step` rows the first ones, then the second ones below."""
    is_pair = blocks.shape == (*scales.shape, BLOCK_BYTES) and blocks.dtype == scales.dtype == "U8"
    if not is_pair or len(scales.shape) != 3:
        shown = [describe(each.dtype, each.shape) for each in (blocks, scales)]
        problem = f"{blocks.name!r} and {scales.name!r} must be U8 [experts, rows, blocks, {BLOCK_BYTES}] and U8 "
        raise UsageError(f"{problem}[experts, rows, blocks], but are {' and '.join(shown)}", hint="save it again")
    num_experts, num_rows, num_blocks = scales.shape
    width = num_blocks * BLOCK_ITEMS * ITEM
    rows = np.concatenate([np.arange(first, num_rows, row_step) for first in range(row_step)])
    found = []
    for expert in range(num_experts):
        stored = [each.mosaic.rows(expert, expert + 1).folded(num_rows) for each in (blocks, scales)]
        whole = DequantizedSlice(blocks=stored[0], scales=stored[1], source_rows=rows, num_rows=num_rows, width=width)
        found.append(TensorView(num_rows, width, (whole,)))
    return found
