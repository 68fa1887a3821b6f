"""A named box of ranks: which ranks form a group along which dimensions."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from zenith_tune.errors import UnknownNameError, UsageError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class GridTooLargeError(UsageError, RuntimeError):
    """Report a grid that does not fit into the world; also a RuntimeError, as it is in Megatron-LM."""


class HyperCommGrid:
    """Arrange consecutive ranks in a box whose first dimension varies fastest.

    >>> grid = HyperCommGrid([2, 3], ["tp", "pp"], rank_offset=2, world_size=8)
    >>> grid.get_rank_enum("tp")
    [[2, 3], [4, 5], [6, 7]]
    >>> grid.get_rank_enum("pp")
    [[2, 4, 6], [3, 5, 7]]
    """

    def __init__(
        self,
        shape: Sequence[int],
        dim_names: Sequence[str],
        rank_offset: int = 0,
        backend: str | None = None,
        *,
        world_size: int | None = None,
    ) -> None:
        self.shape = list(shape)
        self.dim_names = list(dim_names)
        self.rank_offset = rank_offset
        self.backend = backend
        self.size = math.prod(self.shape)
        self._groups: dict[tuple[str, ...], ProcessGroup | None] = {}
        self._check(world_size)

    def _check(self, world_size: int | None) -> None:
        shape, names = self.shape, self.dim_names
        if len(shape) != len(names):
            raise UsageError(
                f"a grid needs one name per dimension, but got {len(shape)} sizes {shape} and {len(names)} names "
                f"{names}: give as many of one as of the other."
            )
        if len(set(names)) != len(names):
            raise UsageError(f"the dimensions of a grid must have different names, but got {names}: rename one.")
        if any(size < 1 for size in shape):
            raise UsageError(f"the sizes of a grid must be at least 1, but got {shape}.")
        if self.rank_offset < 0:
            raise UsageError(f"rank_offset must be at least 0, but got {self.rank_offset}.")
        world = _world_size() if world_size is None else world_size
        if self.rank_offset + self.size > world:
            raise GridTooLargeError(
                f"a grid must end within the world, but {' * '.join(map(str, shape))} = {self.size} ranks from rank "
                f"{self.rank_offset} on are over sized for {world}: make a dimension smaller, or start more ranks."
            )

    def get_rank_enum(self, dims: str | Sequence[str]) -> list[list[int]]:
        """Return the ranks of each group along `dims`; the first dimension varies fastest, in and between groups."""
        inner = self._ordered(dims)
        outer = [name for name in self.dim_names if name not in inner]
        return [[start + step for step in self._steps(inner)] for start in self._steps(outer, self.rank_offset)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return where a rank of the world stands in this grid."""
        if not self.holds(rank):
            last = self.rank_offset + self.size - 1
            raise UsageError(f"rank {rank} is not in this grid, which holds ranks {self.rank_offset} to {last}.")
        rest, found = rank - self.rank_offset, {}
        for name, size in zip(self.dim_names, self.shape, strict=True):
            rest, found[name] = divmod(rest, size)
        return found

    def rank_at(self, **coordinates: int) -> int:
        """Return the rank that stands at these coordinates, 0 where none is given."""
        self._ordered(list(coordinates))
        strides = self._strides()
        return self.rank_offset + sum(strides[name] * index for name, index in coordinates.items())

    def size_of(self, name: str) -> int:
        """Return the size of a dimension, 1 if the grid has none of that name."""
        return self.shape[self.dim_names.index(name)] if name in self.dim_names else 1

    def holds(self, rank: int) -> bool:
        """Return whether a rank of the world is in this grid."""
        return self.rank_offset <= rank < self.rank_offset + self.size

    def is_current_rank_in_grid(self) -> bool:
        """Return whether this process is in this grid."""
        import torch.distributed as dist

        return self.holds(dist.get_rank())

    def create_pg(self, dims: str | Sequence[str], timeout: timedelta | None = None) -> ProcessGroup | None:
        """Make the groups along `dims` and return this rank's; every rank of the world calls it, in one order."""
        import torch.distributed as dist

        key = tuple(self._ordered(dims))
        if key in self._groups:
            raise KeyError(f"the group {'-'.join(key)} was already made: use get_pg, or destroy the grid first.")
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        mine, _ = dist.new_subgroups_by_enumeration(self.get_rank_enum(dims), backend=self.backend, **options)
        self._groups[key] = mine
        return mine

    def get_pg(self, dims: str | Sequence[str]) -> ProcessGroup | None:
        """Return this rank's process group along `dims`, None outside the grid."""
        key = tuple(self._ordered(dims))
        if key not in self._groups:
            raise KeyError(f"the group {'-'.join(key)} was not made yet: call create_pg on every rank first.")
        return self._groups[key]

    def destroy(self) -> None:
        """Destroy the groups that this grid made and this rank is in; a second call does nothing."""
        import torch.distributed as dist

        for group in self._groups.values():
            if group is not None:
                dist.destroy_process_group(group)
        self._groups.clear()

    def _ordered(self, dims: str | Sequence[str]) -> list[str]:
        asked = [dims] if isinstance(dims, str) else list(dims)
        for name in asked:
            if name not in self.dim_names:
                raise UnknownNameError("dimension of the grid", name, self.dim_names)
        if len(set(asked)) != len(asked):
            raise UsageError(f"a group takes each dimension once, but got {asked}.")
        return [name for name in self.dim_names if name in asked]

    def _strides(self) -> dict[str, int]:
        sizes = itertools.accumulate([1, *self.shape[:-1]], lambda a, b: a * b)
        return dict(zip(self.dim_names, sizes, strict=True))

    def _steps(self, names: list[str], start: int = 0) -> list[int]:
        strides = self._strides()
        # product() varies its last argument fastest, the grid its first.
        axes = [range(0, self.size_of(name) * strides[name], strides[name]) for name in reversed(names)]
        return [start + sum(steps) for steps in itertools.product(*axes)]


def _world_size() -> int:
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    import torch.distributed as dist

    if dist.is_initialized():
        return int(dist.get_world_size())
    raise RuntimeError("the size of the world is unknown: set WORLD_SIZE, or call init_process_group before the grid.")
