"""A tensor in a shard: its name, type and shape, and where its bytes lie."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zenith_tune.checkpoint.dtypes import ITEM_BYTES
from zenith_tune.checkpoint.tensor_view import Mosaic


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

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def mosaic(self) -> Mosaic:
        """The tensor as rows of bytes, one for each index of its first dimension."""
        num_rows = self.shape[0] if self.shape else 1
        return Mosaic.of_file(self.path, self.offset, num_rows, row_bytes(self.shape, self.dtype))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContent:
    """Hold what one shard says of itself."""

    tensors: dict[str, StoredTensor]
    wrapper: str | None = None
    """The key that the weights were found under, where a .bin holds more than weights."""
    plain: dict[str, Any] = field(default_factory=dict)
    """Numbers and words beside the weights, such as an iteration."""
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
