"""The place of a rank's piece in the whole tensor that a layout splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalShard:
    """A box of a tensor: where it begins and how large it is, in the coordinates of the whole.

    >>> LogicalShard.split((8, 4), dim=0, parts=2, index=1)
    LogicalShard(shape=(8, 4), offsets=(4, 0), sizes=(4, 4))
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def split(cls, shape: tuple[int, ...], *, dim: int | None, parts: int, index: int) -> LogicalShard:
        """Return part `index` of equal `parts` along `dim`; without `dim` the whole."""
        offsets, sizes = [0] * len(shape), list(shape)
        if dim is not None:
            sizes[dim] = shape[dim] // parts
            offsets[dim] = sizes[dim] * index
        return cls(shape=shape, offsets=tuple(offsets), sizes=tuple(sizes))

    @property
    def is_whole(self) -> bool:
        """Whether every rank of the tensor-parallel group holds the same, the whole."""
        return self.sizes == self.shape

    def rows(self, start: int, stop: int) -> LogicalShard:
        """Return the part between two rows, counted from the beginning of this one."""
        return LogicalShard(
            shape=self.shape,
            offsets=(self.offsets[0] + start, *self.offsets[1:]),
            sizes=(stop - start, *self.sizes[1:]),
        )

    def cut(self, whole: Any) -> Any:
        """Return this box of the whole tensor."""
        return whole[tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))]
