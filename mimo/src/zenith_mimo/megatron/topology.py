"""Megatron's grids and process groups of a layout."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.hyper_comm_grid import HyperCommGrid
from megatron.core.process_groups_config import MultiModuleProcessGroupCollection, ProcessGroupCollection

from zenith_mimo.megatron.support import add_expert_groups
from zenith_mimo.planning.config import LANGUAGE, MimoLayout, ModuleLayout
from zenith_tune.errors import UsageError

DIMS = ["tp", "cp", "ep", "pp", "dp"]
"""tp varies fastest and dp slowest, as in a layout; context and expert parallelism are 1."""
GROUPS = {
    "tp": ["tp"],
    "cp": ["cp"],
    "ep": ["ep"],
    "pp": ["pp"],
    "dp": ["dp"],
    "tp_cp": ["tp", "cp"],
    "dp_cp": ["cp", "dp"],
    "tp_dp_cp": ["tp", "cp", "dp"],
    "mp": ["tp", "pp"],
    "tp_ep": ["tp", "ep"],
    "tp_ep_pp": ["tp", "ep", "pp"],
    "expt_dp": ["ep", "dp"],
    "intra_dist_opt": DIMS,
}
"""Megatron's names of the groups, and along what they are."""
SAME = {"intra_dp_cp": "dp_cp", "expt_tp": "tp", "intra_expt_dp": "expt_dp", "dp_cp_gtp_remat": "dp_cp"}
"""Names of the same groups, as long as nothing divides them further."""


class MegatronTopology:
    """The grids and groups of a layout; making one is a collective, called by every rank of the world."""

    def __init__(self, layout: MimoLayout, *, timeout: timedelta = timedelta(minutes=10)) -> None:
        world_size = dist.get_world_size()
        if layout.world_size != world_size:
            raise UsageError(f"the layout needs {layout.world_size} ranks, but {world_size} were started.")
        self.layout, self.timeout = layout, timeout
        self.grids: dict[str, HyperCommGrid] = {}
        self.groups: dict[str, ProcessGroupCollection] = {}
        """Process groups of the modules on this rank."""
        self._embedding_groups: list[Any] = []
        for name, module in sorted(layout.modules.items()):
            self._add(name, module)
        if parallel_state._GLOBAL_MEMORY_BUFFER is None:
            parallel_state._set_global_memory_buffer()

    def _add(self, name: str, module: ModuleLayout) -> None:
        grid = HyperCommGrid([module.tp, 1, 1, module.pp, module.dp], DIMS, module.offset)
        self.grids[name] = grid
        made = {name: grid.create_pg(dims, timeout=self.timeout) for name, dims in GROUPS.items()}
        add_expert_groups(grid, timeout=self.timeout)
        first_and_last = self._along_pipelines(grid, [0, -1])
        first = self._along_pipelines(grid, [0])
        if not grid.is_current_rank_in_grid():
            return
        groups = self.groups[name] = ProcessGroupCollection()
        for attribute, group in {**made, **{alias: made[of] for alias, of in SAME.items()}}.items():
            setattr(groups, attribute, group)
        groups.embd = first_and_last if name == LANGUAGE else None
        groups.pos_embd = first if name == LANGUAGE else None

    def _along_pipelines(self, grid: HyperCommGrid, stages: list[int]) -> Any:
        """Make a group of these stages of every pipeline, and return the one that this rank is in."""
        mine = None
        for ranks in _pipelines(grid):
            members = sorted({ranks[stage] for stage in stages})
            group = dist.new_group(members, timeout=self.timeout)
            if dist.get_rank() in members:
                mine = group
                self._embedding_groups.append(group)
        return mine

    def stage(self, name: str) -> int:
        """Return this rank's stage of a module that it is in."""
        return int(self.groups[name].pp.rank())

    def lane(self, name: str) -> int:
        """Return this rank's data-parallel lane of a module that it is in."""
        return int(self.groups[name].dp.rank())

    def is_last_stage(self, name: str) -> bool:
        """Return whether this rank holds the last stage of a module."""
        return name in self.groups and self.stage(name) == self.layout.modules[name].pp - 1

    @property
    def schedule_groups(self) -> MultiModuleProcessGroupCollection:
        """The groups of this rank's modules as Megatron's schedule takes them."""
        language = LANGUAGE if LANGUAGE in self.groups else None
        return MultiModuleProcessGroupCollection(module_pgs=self.groups, language_model_module_name=language)

    def destroy(self) -> None:
        """Give the groups back."""
        for grid in self.grids.values():
            grid.destroy()
        for group in self._embedding_groups:
            dist.destroy_process_group(group)


def _pipelines(grid: HyperCommGrid) -> list[list[int]]:
    """Return the ranks of every pipeline from its first stage to its last."""
    tp, _, _, pp, dp = grid.shape
    starts = [grid.rank_offset + lane * pp * tp + shard for lane in range(dp) for shard in range(tp)]
    return [[start + stage * tp for stage in range(pp)] for start in starts]
