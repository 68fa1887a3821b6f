"""A named box of ranks: which ranks form a group along which dimensions."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from zenith_tune.errors import UsageError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class GridTooLargeError(UsageError, RuntimeError):
    """A grid that does not fit into the world; also a RuntimeError, as it is in Megatron-LM."""


BASE = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankView:
    """One way to see a grid's ranks as a box."""

    name: str
    shape: list[int]
    dim_names: list[str]
    shared_dims: list[str] = field(default_factory=list)
    """Dimensions whose groups are those of the base."""


class HyperCommGrid:
    """Consecutive ranks as a box whose first dimension varies fastest.

    The same ranks may be seen as other boxes too, such as that of the experts: `register_view` names one, and `view`
    asks for its groups. Names and behaviour are those of Megatron-LM's class.

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
        self._views = {BASE: RankView(name=BASE, shape=self.shape[:], dim_names=self.dim_names[:])}
        self._pgs: dict[str | tuple[str, tuple[str, ...]], ProcessGroup | None] = {}
        self._check(world_size)

    def _check(self, world_size: int | None) -> None:
        _check_box(self.shape, self.dim_names)
        if self.rank_offset < 0:
            raise UsageError(f"rank_offset must be at least 0, but got {self.rank_offset}.")
        world = _world_size() if world_size is None else world_size
        if self.rank_offset + self.size > world:
            raise GridTooLargeError(
                f"Grid shape {self.shape} is over sized: it has {' * '.join(map(str, self.shape))} = {self.size} ranks "
                f"from rank {self.rank_offset} on, but the world {world}: make it smaller, or start more ranks."
            )

    def register_view(
        self, name: str, shape: Sequence[int], dim_names: Sequence[str], shared_dims: Sequence[str] | None = None
    ) -> None:
        """Name another box of the same ranks; dimensions that it shares must have the same groups in the base."""
        view = RankView(name=name, shape=list(shape), dim_names=list(dim_names), shared_dims=list(shared_dims or []))
        if name in self._views:
            raise UsageError(f"View {name!r} is already registered: choose another name.")
        _check_box(view.shape, view.dim_names)
        if len(set(view.shared_dims)) != len(view.shared_dims):
            raise UsageError(f"a dimension is shared once, but got duplicate shared_dims: {view.shared_dims}.")
        if math.prod(view.shape) != self.size:
            raise UsageError(
                f"View {name!r} must have as many ranks as the grid, but got {view.shape} of size "
                f"{math.prod(view.shape)}, but the grid size is {self.size}."
            )
        for dims in [*([dim] for dim in view.shared_dims), view.shared_dims]:
            shared = f"Shared dim {dims[0]!r}" if len(dims) == 1 else f"Shared dims {dims}"
            for where, names in (("base view", self.dim_names), ("view's dim_names", view.dim_names)):
                if not set(dims) <= set(names):
                    raise UsageError(f"{shared} of view {name!r} is not in the {where}: {names}.")
            here, there = (self._enum_of(of, dims) for of in (self._views[BASE], view))
            if dims and here != there:
                raise UsageError(f"{shared} has different membership in view {name!r}: {there}, not {here}.")
        self._views[name] = view

    def get_rank_enum(self, dims: str | Sequence[str], *, view: str | None = None) -> list[list[int]]:
        """Return the ranks of each group along `dims`; the first dimension varies fastest, in and between groups."""
        return self._enum_of(self._view(view), dims)

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

    def create_pg(self, dims: str | Sequence[str], *, view: str | None = None, **options: Any) -> ProcessGroup | None:
        """Make the groups along `dims` and return this rank's; every rank of the world calls it, in one order.

        `options` (timeout, pg_options, group_desc) go to torch.distributed as they are.
        """
        import torch.distributed as dist

        seen = self._view(view)
        key, of = self._key(seen, dims)
        if key in self._pgs:
            raise KeyError(f"{_group(dims, seen)} has already been created: use get_pg, or destroy the grid first.")
        mine, _ = dist.new_subgroups_by_enumeration(self._enum_of(of, dims), backend=self.backend, **options)
        self._pgs[key] = mine
        return mine

    def get_pg(self, dims: str | Sequence[str], *, view: str | None = None) -> ProcessGroup | None:
        """Return this rank's process group along `dims`, None outside the grid."""
        seen = self._view(view)
        key, _ = self._key(seen, dims)
        if key not in self._pgs:
            raise KeyError(f"{_group(dims, seen)} hasn't been created: call create_pg on every rank first.")
        return self._pgs[key]

    def destroy(self) -> None:
        """Destroy the groups that this grid made and this rank is in; a second call does nothing."""
        import torch.distributed as dist

        for group in self._pgs.values():
            if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        self._pgs.clear()

    def _view(self, name: str | None) -> RankView:
        if (view := self._views.get(BASE if name is None else name)) is None:
            raise KeyError(f"View {name!r} is not registered, but these are: {sorted(self._views)}.")
        return view

    def _key(self, view: RankView, dims: str | Sequence[str]) -> tuple[str | tuple[str, tuple[str, ...]], RankView]:
        """Return under what a group is kept, and the view that it is of: shared dimensions are the base's."""
        self._ordered(dims, view)
        ordered, joined = self._order_dims_for(view.dim_names, dims)
        if view.name == BASE or all(name in view.shared_dims for name in ordered):
            base = self._views[BASE]
            return self._order_dims_for(base.dim_names, ordered)[1] if view.name != BASE else joined, base
        return (view.name, tuple(ordered)), view

    @staticmethod
    def _order_dims_for(dim_names: Sequence[str], dims: str | Sequence[str]) -> tuple[list[str], str]:
        """Return dimensions with the slowest first, and their common name."""
        asked = [dims] if isinstance(dims, str) else list(dims)
        ordered = [name for name in reversed(dim_names) if name in asked]
        return ordered, "-".join(ordered)

    def _gen_rank_enum(self, dims: Sequence[str]) -> list[list[int]]:
        """Return the groups along `dims` of the base in the order given: the last varies fastest."""
        return self._enum(self._views[BASE], list(reversed(dims)))

    def _enum_of(self, view: RankView, dims: str | Sequence[str]) -> list[list[int]]:
        return self._enum(view, self._ordered(dims, view))

    def _enum(self, view: RankView, inner: list[str]) -> list[list[int]]:
        outer = [name for name in view.dim_names if name not in inner]
        return [[start + step for step in _steps(view, inner)] for start in _steps(view, outer, self.rank_offset)]

    def _ordered(self, dims: str | Sequence[str], view: RankView | None = None) -> list[str]:
        seen = view or self._views[BASE]
        names = seen.dim_names
        asked = [dims] if isinstance(dims, str) else list(dims)
        for name in asked:
            if name not in names:
                raise UsageError(f"{name!r} is not in view {seen.name!r} of the grid, which has {names}.")
        if len(set(asked)) != len(asked):
            raise UsageError(f"a group takes each dimension once, but got {asked}.")
        return [name for name in names if name in asked]

    def _strides(self) -> dict[str, int]:
        return _strides(self._views[BASE])


def _group(dims: str | Sequence[str], view: RankView) -> str:
    return f"Process group for {dims}" + ("" if view.name == BASE else f" for view {view.name!r}")


def _strides(view: RankView) -> dict[str, int]:
    sizes = itertools.accumulate([1, *view.shape[:-1]], lambda a, b: a * b)
    return dict(zip(view.dim_names, sizes, strict=True))


def _steps(view: RankView, names: list[str], start: int = 0) -> list[int]:
    strides, sizes = _strides(view), dict(zip(view.dim_names, view.shape, strict=True))
    # product() varies its last argument fastest, the grid its first.
    axes = [range(0, sizes[name] * strides[name], strides[name]) for name in reversed(names)]
    return [start + sum(steps) for steps in itertools.product(*axes)]


def _check_box(shape: list[int], names: list[str]) -> None:
    if len(shape) != len(names):
        raise UsageError(
            f"a grid needs one name per dimension, but len(shape) {len(shape)} != len(dim_names) {len(names)}: give as "
            f"many sizes {shape} as names {names}."
        )
    if len(set(names)) != len(names):
        raise UsageError(f"the dimensions of a grid have a name each, but got duplicate dim_names {names}: rename one.")
    if any(int(size) != size or size < 1 for size in shape):
        raise UsageError(f"a grid's shape must be positive ints, but got {shape}.")


def _world_size() -> int:
    if "WORLD_SIZE" in os.environ:
        return int(os.environ["WORLD_SIZE"])
    import torch.distributed as dist

    if dist.is_initialized():
        return int(dist.get_world_size())
    raise RuntimeError("the size of the world is unknown: set WORLD_SIZE, or call init_process_group before the grid.")
