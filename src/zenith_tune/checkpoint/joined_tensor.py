"""One weight of the whole model, joined from the tensor ranks and cut for others."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zenith_tune.checkpoint.dtypes import ITEM_BYTES
from zenith_tune.checkpoint.split_rules import Home, Split
from zenith_tune.checkpoint.stored_tensor import StoredTensor, describe
from zenith_tune.checkpoint.tensor_view import Mosaic
from zenith_tune.errors import UsageError

BY_ROWS = (Split.COLUMN, Split.QKV, Split.VOCABULARY)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedTensor:
    """Hold a weight as one tensor that lies in the shards of all ranks."""

    name: str
    key_parts: tuple[int, ...]
    dtype: str
    shape: tuple[int, ...]
    mosaic: Mosaic
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
            mosaic = Mosaic.stack([mosaic, *[self.mosaic.rows(have - 1, have)] * (num_rows - have)])
        return replace(self, mosaic=mosaic, shape=(num_rows, *self.shape[1:]))

    def part(self, rank: int, tp: int) -> JoinedTensor:
        """Return what one of `tp` ranks holds of the tensor."""
        if self.split is Split.WHOLE or tp == 1:
            return self
        axis = 1 if self.split is Split.ROW else 0
        halves = 2 if self.split is Split.GATED else 1
        size, rest = divmod(self.shape[axis], halves * tp)
        if rest:
            law = f"{self.name!r}, {describe(self.dtype, self.shape)}, cannot be split over {tp} tensor ranks"
            raise UsageError(f"{law}: {self.shape[axis] // halves} is no multiple of {tp}; choose another --tp")
        shape = tuple(halves * size if i == axis else each for i, each in enumerate(self.shape))
        return replace(self, shape=shape, mosaic=self._cut(rank, size, halves * tp * size))

    def _cut(self, rank: int, size: int, whole: int) -> Mosaic:
        start, stop = rank * size, (rank + 1) * size
        if self.split is Split.ROW:
            column_bytes = self.mosaic.width // whole
            return self.mosaic.columns(start * column_bytes, stop * column_bytes)
        if self.split is Split.GATED:
            half = whole // 2
            return Mosaic.stack([self.mosaic.rows(start, stop), self.mosaic.rows(half + start, half + stop)])
        return self.mosaic.rows(start, stop)


def join_ranks(ranks: list[StoredTensor], name: str, split: Split, home: Home) -> JoinedTensor:
    """Return one tensor from what each tensor rank holds; whole ones must be the same on all ranks."""
    first, parts = ranks[0], [each.mosaic for each in ranks]
    _refuse_few_axes(first, split)
    shape, mosaic = first.shape, parts[0]
    if len(ranks) > 1 and split is Split.WHOLE:
        _refuse_differences(ranks)
    elif len(ranks) > 1:
        _refuse_copies(ranks)
        axis = 1 if split is Split.ROW else 0
        shape = tuple(len(ranks) * size if i == axis else size for i, size in enumerate(shape))
        if split is Split.ROW:
            mosaic = Mosaic.beside(parts)
        elif split is Split.GATED:
            half = first.shape[0] // 2
            gates, ups = [part.rows(0, half) for part in parts], [part.rows(half, 2 * half) for part in parts]
            mosaic = Mosaic.stack([*gates, *ups])
        else:
            mosaic = Mosaic.stack(parts)
    return JoinedTensor(
        name=name, key_parts=first.key_parts, dtype=first.dtype, shape=shape, mosaic=mosaic, split=split, home=home
    )


def _refuse_few_axes(tensor: StoredTensor, split: Split) -> None:
    needed = {Split.WHOLE: 0, Split.ROW: 2}.get(split, 1)
    if len(tensor.shape) < needed:
        law = f"{tensor.name!r} must have {needed} or more dimensions to be split by {split.value}"
        raise UsageError(f"{law}, but is {describe(tensor.dtype, tensor.shape)}: it is not Megatron's")


def _refuse_differences(ranks: list[StoredTensor]) -> None:
    for rank, other in enumerate(ranks[1:], start=1):
        if not ranks[0].mosaic.equals(other.mosaic):
            law = f"{other.name!r} must be the same on all tensor ranks, but {ranks[0].path.name} and "
            cure = "the shards are of different checkpoints, or its name is one that no rule splits"
            raise UsageError(f"{law}{other.path.name} (rank {rank}) differ: {cure}")


def _refuse_copies(ranks: list[StoredTensor]) -> None:
    """Refuse a weight that is the same on all ranks: joining copies would make a model of double width."""
    first = ranks[0]
    if len(first.shape) < 2 or not all(first.mosaic.equals(other.mosaic) for other in ranks[1:]):
        return
    if not first.mosaic.is_constant(ITEM_BYTES[first.dtype]):
        law = f"{first.name!r} must be split over {len(ranks)} tensor ranks, but all of them hold the same"
        cure = "a shard was copied under another name, or (experts only) give --whole-experts"
        raise UsageError(f"{law}: {cure}")
