"""Where this process stands: its grids, its groups, and its stage in each module it trains."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

from zenith_mimo.grid import HyperCommGrid
from zenith_mimo.planning.config import MimoLayout, ModuleLayout
from zenith_tune.errors import UsageError, ZenithTuneError

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
    data: Any
    """Like `model`, for samples on the host; None where a replica is one rank."""
    items: Any
    """The first stage's ranks of a replica, for items on the host; None where it is one rank."""


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

    def repeats(self, tensor: Any) -> bool:
        """Return whether an earlier stage has a tied parameter too, and counts and saves it."""
        return self.pp_rank > 0 and getattr(tensor, "is_tied", False)

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
        _announce()
        self.rank: int = dist.get_rank()
        self.grids: dict[str, HyperCommGrid] = {}
        self.roles: dict[str, ModuleRole] = {}
        self._data: list[Any] = []
        for name, module in sorted(layout.modules.items()):
            shape = [module.tp, module.pp, module.dp]
            grid = HyperCommGrid(shape, DIMS, module.offset, backend, world_size=world_size)
            self.grids[name] = grid
            groups = [grid.create_pg(dims, timeout=timeout) for dims in ("tp", "dp", ["tp", "pp"], DIMS)]
            data, items = self._data_groups(module, grid)
            if grid.is_current_rank_in_grid():
                tp, dp, model, whole = groups
                at = grid.coordinates(self.rank)
                self.roles[name] = ModuleRole(
                    name=name,
                    layout=module,
                    grid=grid,
                    groups=ModuleGroups(tp=tp, dp=dp, model=model, whole=whole, data=data, items=items),
                    tp_rank=at["tp"],
                    pp_rank=at["pp"],
                    dp_rank=at["dp"],
                )
        # Activations and gradients run opposite ways between the same ranks. Over one group NCCL would order them
        # together, and a rank that sends ahead of its receipts would wait for ever.
        self.forward_group = dist.new_group(backend=backend, timeout=timeout)
        self.backward_group = dist.new_group(backend=backend, timeout=timeout)

    def _data_groups(self, module: ModuleLayout, grid: HyperCommGrid) -> tuple[Any, Any]:
        """Return this rank's groups for samples, over which another thread sends: no other may have them."""
        found: list[Any] = [None, None]
        for lane in range(module.dp):
            stages = [[grid.rank_at(tp=tp, pp=pp, dp=lane) for tp in range(module.tp)] for pp in range(module.pp)]
            for index, ranks in enumerate(([rank for stage in stages for rank in stage], stages[0])):
                if len(ranks) > 1:
                    group = dist.new_group(ranks, backend="gloo", timeout=self.timeout)
                    if self.rank in ranks:
                        found[index] = group
                        self._data.append(group)
        return found[0], found[1]

    def destroy(self) -> None:
        """Give the groups back."""
        for group in self._data:
            dist.destroy_process_group(group)
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
        if not dist.is_initialized():
            raise
        found = _dead_ranks()
        ranks = f"{'rank' if len(found) == 1 else 'ranks'} {', '.join(map(str, found))}" if found else "another rank"
        hint = f"look for why {ranks} failed" if found else "look for the first rank that failed"
        raise LostPeerError(f"rank {dist.get_rank()} lost {ranks} in {what} ({_reason(error)}): {hint}.") from error


_RANK, _DEAD = "zenith_mimo/rank", "zenith_mimo/dead"
"""Keys of the world's store: where the process of a rank is, and which ranks were found dead."""
_DEAD_STATES = "ZXT"
"""States of a process that takes part no more: ended, or stopped."""
WAIT_FOR_WORD_S = 2.0
"""How long a rank waits to hear from another host which rank died there."""


def _announce() -> None:
    """Say where this rank's process is."""
    _get_default_store().set(f"{_RANK}{dist.get_rank()}", f"{socket.gethostname()} {os.getpid()}")


def _dead_ranks() -> list[int]:
    """Return the ranks whose processes have ended or stopped, as seen on this host or said by another one."""
    store, deadline = _get_default_store(), time.monotonic() + WAIT_FOR_WORD_S
    try:
        while time.monotonic() < deadline:
            if not store.check([_DEAD]):
                dead = [rank for rank in range(dist.get_world_size()) if not _is_alive(store, rank)]
                if not dead:
                    time.sleep(0.1)
                    continue
                # The first word counts: ranks that have noticed end too, and would be taken for lost by the next.
                store.compare_set(_DEAD, "", " ".join(map(str, dead)))
            return [int(rank) for rank in store.get(_DEAD).split()]
    except (RuntimeError, dist.DistError):
        return []  # the store was on the host that is lost
    return []


def _is_alive(store: dist.Store, rank: int) -> bool:
    """Return whether a rank takes part, as far as this host can see."""
    if not store.check([f"{_RANK}{rank}"]):
        return True
    host, _, pid = store.get(f"{_RANK}{rank}").decode().rpartition(" ")
    if host != socket.gethostname():
        return True
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return not Path("/proc/self").exists()
    return state not in _DEAD_STATES


def _reason(error: Exception) -> str:
    """Return the backend's first line without its source file and its advice."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return re.sub(r"^\[[^\]]*\]\s*", "", line).split(". This is typically")[0].rstrip(".")
