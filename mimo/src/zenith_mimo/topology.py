"""Where this process stands: its grids, its groups, and its stage in each module it trains."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from zenith_mimo.grid import HyperCommGrid
from zenith_tune.errors import UsageError, ZenithTuneError
from zenith_tune.planner.mimo.modules import MimoLayout, ModuleLayout

DIMS = ["tp", "pp", "dp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleGroups:
    """The process groups of one module that this rank is in."""

    tp: Any
    dp: Any
    model: Any
    """Along tp and pp: the ranks that hold one replica."""
    whole: Any
    """Along every dimension: the ranks that hold the optimizer's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRole:
    """This rank's role in one module."""

    name: str
    layout: ModuleLayout
    grid: HyperCommGrid
    groups: ModuleGroups
    tp_rank: int
    pp_rank: int
    dp_rank: int

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank holds the first pipeline stage of the module."""
        return self.pp_rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank holds the last pipeline stage of the module."""
        return self.pp_rank == self.layout.pp - 1

    def rank_at(self, *, tp: int | None = None, pp: int | None = None) -> int:
        """Return the rank of this replica at another place of it."""
        here = {"tp": self.tp_rank, "pp": self.pp_rank, "dp": self.dp_rank}
        return self.grid.rank_at(**{**here, **{k: v for k, v in (("tp", tp), ("pp", pp)) if v is not None}})


class Topology:
    """The grids and groups of a layout; making one is a collective, called by every rank of the world."""

    def __init__(
        self, layout: MimoLayout, *, backend: str | None = None, timeout: timedelta = timedelta(minutes=10)
    ) -> None:
        world_size = dist.get_world_size()
        if layout.world_size != world_size:
            raise UsageError(f"the layout needs {layout.world_size} ranks, but {world_size} were started.")
        self.layout, self.backend, self.timeout = layout, backend, timeout
        self.rank: int = dist.get_rank()
        self.grids: dict[str, HyperCommGrid] = {}
        self.roles: dict[str, ModuleRole] = {}
        for name, module in sorted(layout.modules.items()):
            shape = [module.tp, module.pp, module.dp]
            grid = HyperCommGrid(shape, DIMS, module.offset, backend, world_size=world_size)
            self.grids[name] = grid
            groups = [grid.create_pg(dims, timeout=timeout) for dims in ("tp", "dp", ["tp", "pp"], DIMS)]
            if grid.is_current_rank_in_grid():
                tp, dp, model, whole = groups
                at = grid.coordinates(self.rank)
                self.roles[name] = ModuleRole(
                    name=name,
                    layout=module,
                    grid=grid,
                    groups=ModuleGroups(tp=tp, dp=dp, model=model, whole=whole),
                    tp_rank=at["tp"],
                    pp_rank=at["pp"],
                    dp_rank=at["dp"],
                )
        # Activations and gradients run opposite ways between the same ranks. Over one group NCCL would order them
        # together, and a rank that sends ahead of its receipts would wait for ever.
        self.forward_group = dist.new_group(backend=backend, timeout=timeout)
        self.backward_group = dist.new_group(backend=backend, timeout=timeout)

    def destroy(self) -> None:
        """Give the groups back."""
        for grid in self.grids.values():
            grid.destroy()
        for group in (self.forward_group, self.backward_group):
            dist.destroy_process_group(group)


# gloo has no exception class of its own: these are words of its messages.
_GLOO_WORDS = ("gloo", "Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe")


class LostPeerError(ZenithTuneError):
    """Another rank died or does not answer; the reason is in that rank's own log."""


@contextlib.contextmanager
def peers_expected(what: str) -> Iterator[None]:
    """Turn a backend's failure to reach another rank into one clear line."""
    try:
        yield
    except (RuntimeError, dist.DistError) as error:
        if not isinstance(error, dist.DistError) and not any(word in str(error) for word in _GLOO_WORDS):
            raise
        rank = dist.get_rank() if dist.is_initialized() else "?"
        raise LostPeerError(
            f"rank {rank} lost another rank in {what} ({_reason(error)}): look for the first rank that failed."
        ) from error


def _reason(error: Exception) -> str:
    """Return the backend's first line without its source file and its advice."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*\]\s*", "", line).split(". This is typically")[0].rstrip(".")
