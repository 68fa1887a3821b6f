"""One optimizer over modules that live on different ranks: one norm, one verdict, one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from zenith_tune.errors import UsageError
from zenith_tune.mimo.comm.grid import HyperCommGrid
from zenith_tune.mimo.comm.topology import ModuleGroups
from zenith_tune.mimo.model.modules import MimoModel
from zenith_tune.mimo.optimizer.module_optimizer import ModuleOptimizer, OptimizerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleOptimizerInfo:
    """One module's optimizer; without one where the module is not on this rank."""

    optimizer: ModuleOptimizer | None
    grid: HyperCommGrid
    pg_collection: ModuleGroups | None
    is_active: bool


class MimoOptimizer:
    """Step all modules together; every rank of the world calls each method that says so."""

    def __init__(self, module_infos: Mapping[str, ModuleOptimizerInfo], config: OptimizerConfig, device: str) -> None:
        self.module_infos = dict(sorted(module_infos.items()))
        self.config = config
        self._device = device

    @property
    def active(self) -> dict[str, ModuleOptimizer]:
        """The optimizers of the modules on this rank."""
        return {name: info.optimizer for name, info in self.module_infos.items() if info.optimizer is not None}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the modules on this rank."""
        return [group for optimizer in self.active.values() for group in optimizer.optimizer.param_groups]

    def get_loss_scale(self) -> float:
        """Return what the loss is multiplied with before backward."""
        return self.config.loss_scale

    def zero_grad(self) -> None:
        """Drop the gradients of the modules on this rank."""
        for optimizer in self.active.values():
            optimizer.zero_grad()

    def prepare_grads(self) -> bool:
        """Make the gradients ready, and return whether one on this rank is infinite or not a number."""
        found = [optimizer.prepare_grads() for optimizer in self.active.values()]
        return any(found)

    def get_grad_norm(self) -> float:
        """Return the norm over all modules, the same number on every rank; all ranks call it."""
        return math.sqrt(sum(self._module_values(lambda optimizer: optimizer.squared_norm())))

    def count_zeros(self) -> int:
        """Return the zeros in the gradients of all modules; all ranks call it."""
        return int(sum(self._module_values(lambda optimizer: float(optimizer.count_zeros()))))

    def step(self) -> tuple[bool, float | None, int | None]:
        """Clip by the global norm and update, all or none; return success, norm and zeros. All ranks call it."""
        if self._agree(float(self.prepare_grads()), dist.ReduceOp.MAX):
            return False, None, None
        norm = self.get_grad_norm()
        clip = self.config.clip_grad
        if clip > 0 and (factor := clip / (norm + 1e-6)) < 1.0:
            for optimizer in self.active.values():
                optimizer.clip(factor)
        num_zeros = self.count_zeros() if self.config.log_num_zeros_in_grad else None
        done = [optimizer.step() for optimizer in self.active.values()]
        return bool(self._agree(float(all(done)), dist.ReduceOp.MIN)), norm, num_zeros

    def state_dict(self) -> dict[str, dict[str, Any] | None]:
        """Return the state of each module, None of those that are not on this rank."""
        active = self.active
        return {name: active[name].optimizer.state_dict() if name in active else None for name in self.module_infos}

    def load_state_dict(self, state: Mapping[str, dict[str, Any] | None]) -> None:
        """Take the state of the modules on this rank; what is missing or elsewhere is left as it is."""
        for name, optimizer in self.active.items():
            if (module_state := state.get(name)) is not None:
                optimizer.optimizer.load_state_dict(module_state)

    def _module_values(self, value_of: Callable[[ModuleOptimizer], float]) -> list[float]:
        """Return one value per module: all ranks of a module hold the same, so the maximum over the world is it."""
        slots = torch.zeros(len(self.module_infos), dtype=torch.float64)
        for index, info in enumerate(self.module_infos.values()):
            if info.optimizer is not None:
                slots[index] = value_of(info.optimizer)
        slots = slots.to(self._device)
        dist.all_reduce(slots, dist.ReduceOp.MAX)
        return [float(value) for value in slots.tolist()]

    def _agree(self, value: float, op: Any) -> float:
        verdict = torch.tensor(value, device=self._device)
        dist.all_reduce(verdict, op)
        return float(verdict)


def get_mimo_optimizer(model: MimoModel, config: OptimizerConfig) -> MimoOptimizer:
    """Return the optimizer of a model, with one part for each module on this rank."""
    if config.num_distributed_optimizer_instances != 1:
        raise UsageError(
            f"num_distributed_optimizer_instances must be 1, but got {config.num_distributed_optimizer_instances}: "
            f"a module's optimizer state is shared out over all its data-parallel ranks, not over groups of them."
        )
    infos = {}
    for name, grid in model.topology.grids.items():
        role = model.topology.roles.get(name)
        infos[name] = ModuleOptimizerInfo(
            optimizer=ModuleOptimizer(model.parts[name], role, config) if role else None,
            grid=grid,
            pg_collection=role.groups if role else None,
            is_active=role is not None,
        )
    return MimoOptimizer(infos, config, model.device)
