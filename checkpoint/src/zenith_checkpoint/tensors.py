"""The tensors of shards and of the whole model: names, places among the ranks, and data that is not read yet."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from zenith_checkpoint.lazy_tensor import LazyTensor
from zenith_checkpoint.split_rules import Home, Split
from zenith_tune.errors import UsageError

DTYPE_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.float32: "F32",
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
}
"""The names that the safetensors format has for types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """A tensor of a shard, not read yet."""

    name: str
    key_parts: tuple[int, ...]
    """The number of the name's dotted parts in each key of the nested dictionaries that it was found in."""
    path: Path
    """The file that messages name."""
    data: LazyTensor

    @property
    def dtype(self) -> torch.dtype:
        """Type of an element."""
        return self.data.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        return self.data.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContent:
    """The content of one shard."""

    name: str
    """The name in messages: its file, or its folder where all files have one name."""
    tensors: dict[str, StoredTensor]
    wrapper: str | None = None
    """The key that the weights were found under, where a .bin holds more than weights."""
    plain: dict[str, Any] = field(default_factory=dict)
    """Numbers and words next to the weights, such as an iteration."""
    args: dict[str, Any] = field(default_factory=dict)
    """Megatron-LM's arguments, where it saved them: the plain ones."""
    metadata: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    """Names of entries that are neither weights nor plain values, such as an optimizer's state."""


def describe(tensor: StoredTensor | JoinedTensor) -> str:
    """Write a tensor's type and shape for a person, as in BF16 [4, 3]."""
    return f"{DTYPE_NAMES.get(tensor.dtype, tensor.dtype)} {list(tensor.shape)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTensor:
    """A weight of the whole model, whose parts lie in the shards of all ranks."""

    name: str
    key_parts: tuple[int, ...]
    data: LazyTensor
    split: Split
    home: Home

    @property
    def dtype(self) -> torch.dtype:
        """Type of an element."""
        return self.data.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        return self.data.shape

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.data.num_bytes

    def with_rows(self, num_rows: int) -> JoinedTensor:
        """Return the tensor with fewer rows, or with its last one repeated, as Megatron-LM's own converter pads."""
        have = self.shape[0]
        data = self.data.part(0, 0, min(have, num_rows))
        if num_rows > have:
            data = LazyTensor.cat([data, *[self.data.part(0, have - 1, have)] * (num_rows - have)])
        return replace(self, data=data)

    def part(self, rank: int, tp: int) -> JoinedTensor:
        """Return what one of `tp` ranks holds of the tensor."""
        if self.split is Split.WHOLE or tp == 1:
            return self
        axis = 1 if self.split is Split.ROW else 0
        halves = 2 if self.split is Split.GATED else 1
        size, rest = divmod(self.shape[axis], halves * tp)
        if rest:
            problem = f"{self.name!r}, {describe(self)}, cannot be split over {tp} tensor ranks"
            raise UsageError(f"{problem}: {self.shape[axis] // halves} is no multiple of {tp}; choose another --tp")
        starts = [half * tp * size + rank * size for half in range(halves)]
        parts = [self.data.part(axis, start, start + size) for start in starts]
        return replace(self, data=parts[0] if halves == 1 else LazyTensor.cat(parts))


def join_ranks(ranks: list[StoredTensor], name: str, split: Split, home: Home) -> JoinedTensor:
    """Return one tensor from what each tensor rank holds; whole ones must be the same on all ranks."""
    first, parts = ranks[0], [each.data for each in ranks]
    needed = {Split.WHOLE: 0, Split.ROW: 2}.get(split, 1)
    if len(first.shape) < needed:
        problem = f"{first.name!r} must have {needed} or more dimensions to be split by {split.value}"
        raise UsageError(f"{problem}, but is {describe(first)}: it is not Megatron's")
    data = parts[0]
    if len(ranks) > 1 and split is Split.WHOLE:
        refuse_differences(ranks)
    elif len(ranks) > 1:
        _refuse_copies(ranks)
        if split is Split.GATED:
            half = first.shape[0] // 2
            parts = [part.part(0, start, start + half) for start in (0, half) for part in parts]
        data = LazyTensor.cat(parts, 1 if split is Split.ROW else 0)
    return JoinedTensor(name=name, key_parts=first.key_parts, data=data, split=split, home=home)


def refuse_differences(ranks: list[StoredTensor], kind: str = "tensor") -> None:
    """Refuse copies of a weight that are not the same."""
    for rank, other in enumerate(ranks[1:], start=1):
        if other.data is not ranks[0].data and not ranks[0].data.equals(other.data):
            problem = f"{other.name!r} must be the same on all {kind} ranks, but {ranks[0].path} and "
            hint = "the shards are of different checkpoints, or its name is one that no rule splits"
            raise UsageError(f"{problem}{other.path} (rank {rank}) differ", hint=hint)


def _refuse_copies(ranks: list[StoredTensor]) -> None:
    """Refuse a weight that is the same on all ranks: joining copies would make a model of double width."""
    first = ranks[0]
    if len(first.shape) < 2 or not all(first.data.equals(other.data) for other in ranks[1:]):
        return
    if not first.data.is_constant():
        problem = f"{first.name!r} must be split over {len(ranks)} tensor ranks, but all of them hold the same"
        hint = "a shard was copied under another name, or (experts only) give --whole-experts"
        raise UsageError(problem, hint=hint)
