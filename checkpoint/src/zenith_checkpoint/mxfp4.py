"""Weights that are stored in MXFP4, read as bf16.

Two values of 4 bits (E2M1) lie in a byte, the first in its lower half, and 32 of them share a scale of 8 bits (E8M0):
the microscaling formats of the Open Compute Project. GPT-OSS is published so; a row of blocks is one of a projection.
"""

from __future__ import annotations

import functools

import torch

from zenith_checkpoint.lazy_tensor import Box, LazyTensor
from zenith_checkpoint.tensors import StoredTensor, describe
from zenith_tune.errors import UsageError

BLOCK_ITEMS = 32
BLOCK_BYTES = BLOCK_ITEMS // 2
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
EXPONENT_BIAS = 127


@functools.cache
def _pairs() -> torch.Tensor:
    """Return the two values in bf16 that a byte holds, by its scale and itself in one number of 16 bits."""
    values = torch.tensor([*MAGNITUDES, *(-each for each in MAGNITUDES)], dtype=torch.float64)
    scales = 2.0 ** (torch.arange(256, dtype=torch.float64) - EXPONENT_BIAS)
    items = (scales[:, None] * values).to(torch.bfloat16)  # two significant bits: nothing is rounded
    codes = torch.arange(256)
    return torch.stack([items[:, codes & 15], items[:, codes >> 4]], dim=-1).reshape(-1, 2)


def _dequantized(blocks: LazyTensor, scales: LazyTensor) -> LazyTensor:
    """Return a matrix in bf16 from its blocks, [rows, blocks, bytes], and the scale of each."""

    def read(box: Box) -> torch.Tensor:
        rows, columns = box
        first, last = columns.start // BLOCK_ITEMS, -(-columns.stop // BLOCK_ITEMS)
        codes = blocks.read_box((rows, slice(first, last), slice(0, BLOCK_BYTES))).int()
        scale = scales.read_box((rows, slice(first, last))).int()
        items = _pairs()[scale[..., None] << 8 | codes].reshape(codes.shape[0], -1)
        return items[:, columns.start - first * BLOCK_ITEMS : columns.stop - first * BLOCK_ITEMS]

    num_rows, num_blocks = scales.shape
    return LazyTensor(shape=(num_rows, num_blocks * BLOCK_ITEMS), dtype=torch.bfloat16, read_box=read)


def dequantized(blocks: StoredTensor, scales: StoredTensor, *, row_step: int) -> list[LazyTensor]:
    """Return the matrix of each expert in bf16: of every `row_step` rows the first ones, then the second ones below."""
    is_pair = blocks.shape == (*scales.shape, BLOCK_BYTES) and blocks.dtype == scales.dtype == torch.uint8
    if not is_pair or len(scales.shape) != 3:
        problem = f"{blocks.name!r} and {scales.name!r} must be U8 [experts, rows, blocks, {BLOCK_BYTES}] and U8 "
        shown = f"{describe(blocks)} and {describe(scales)}"
        raise UsageError(f"{problem}[experts, rows, blocks], but are {shown}", hint="save it again")
    found = []
    for expert in range(scales.shape[0]):
        pair = blocks.data.select(expert), scales.data.select(expert)
        turns = [[each.part(0, first, scales.shape[1], row_step) for each in pair] for first in range(row_step)]
        found.append(LazyTensor.cat([_dequantized(*each) for each in turns]))
    return found
