"""One optimizer over modules that live on different ranks, its state whole or shared out over data-parallel ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zenith_tune.errors import UsageError
from zenith_tune.mimo.grid import HyperCommGrid
from zenith_tune.mimo.modules import MimoModel
from zenith_tune.mimo.tensor_parallel import LogicalShard
from zenith_tune.mimo.topology import ModuleGroups, ModuleRole

_LARGEST = 1e30
"""Products with more than that leave single precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW, clipping, and the sharding of its state; the same for every module."""

    lr: float = 1e-3
    weight_decay: float = 0.01
    """Of matrices; vectors are not decayed."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_grad: float = 1.0
    """The largest global norm; 0 to leave gradients as they are."""
    use_distributed_optimizer: bool = False
    """Share each module's optimizer state out to its data-parallel ranks (ZeRO-1)."""
    num_distributed_optimizer_instances: int = 1
    loss_scale: float = 1.0
    """What the loss is multiplied with before backward."""
    log_num_zeros_in_grad: bool = False

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "eps", "clip_grad"):
            value: float = getattr(self, name)
            if not 0 <= value <= _LARGEST:
                raise UsageError(f"{name} must be 0 to {_LARGEST:g}, but got {value:g}: correct it.")


SETTINGS = ("lr", "weight_decay", "betas", "eps")


def owned_rows(num_rows: int, index: int, num_owners: int) -> tuple[int, int]:
    """Return the rows of an owner, as even as they go.

    >>> [owned_rows(10, index, 4) for index in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return num_rows * index // num_owners, num_rows * (index + 1) // num_owners


class OwnedPiece:
    """The rows of one parameter that this rank updates: a view, so that an update is seen by the model."""

    def __init__(self, name: str, parameter: nn.Parameter, start: int, stop: int) -> None:
        self.name, self.parameter, self.start, self.stop = name, parameter, start, stop
        self.weight: Tensor = parameter.detach()[start:stop].requires_grad_()
        self.shard: LogicalShard = parameter.shard.rows(start, stop)

    def take_grad(self) -> None:
        """Point at the model's gradient of these rows."""
        self.weight.grad = self.parameter.grad[self.start : self.stop]


class ModuleOptimizer:
    """Update one module's parameters on this rank with AdamW."""

    def __init__(self, module: nn.Module, role: ModuleRole, config: OptimizerConfig) -> None:
        self._role, self._config = role, config
        self.is_sharded = config.use_distributed_optimizer and role.layout.dp > 1
        self._num_owners = role.layout.dp if self.is_sharded else 1
        self.parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        self.pieces = self._pieces_of(role.dp_rank if self.is_sharded else 0)
        groups = [
            {"params": [p.weight for p in self.pieces if p.weight.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p.weight for p in self.pieces if p.weight.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)

    def _pieces_of(self, owner: int) -> list[OwnedPiece]:
        pieces = []
        for name, parameter in self.parameters.items():
            start, stop = owned_rows(parameter.shape[0], owner, self._num_owners)
            if stop > start:
                pieces.append(OwnedPiece(name, parameter, start, stop))
        return pieces

    def prepare_grads(self) -> bool:
        """Take the gradients over, unscaled, and return whether one is infinite or not a number."""
        grads = [parameter.grad for parameter in self.parameters.values()]
        if self._config.loss_scale != 1.0:
            for grad in grads:
                grad.div_(self._config.loss_scale)
        for piece in self.pieces:
            piece.take_grad()
        largest = torch.stack([grad.abs().max() for grad in grads])
        return not bool(torch.isfinite(largest).all())

    def squared_norm(self) -> float:
        """Return the squared norm of the whole module's gradient, the same on all its ranks."""
        grads = self._counted_grads()
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        if grads:
            total += torch.stack([torch.linalg.vector_norm(grad, dtype=torch.float64) for grad in grads]).square().sum()
        return float(self._sum_over_module(total))

    def count_zeros(self) -> int:
        """Return the zeros in the whole module's gradient, the same on all its ranks."""
        count = sum(grad.numel() - int(grad.count_nonzero()) for grad in self._counted_grads())
        return int(self._sum_over_module(torch.tensor(float(count), dtype=torch.float64, device=self._device)))

    def clip(self, factor: float) -> None:
        """Scale this rank's gradients."""
        for parameter in self.parameters.values():
            parameter.grad.mul_(factor)

    def step(self) -> bool:
        """Update the owned rows and fetch the others; return whether it succeeded."""
        is_done = self.optimizer.step() is not False
        if self.is_sharded:
            self._gather_weights()
        return is_done

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None
        self.optimizer.zero_grad()

    def state_of(self, piece: OwnedPiece) -> dict[str, Tensor]:
        """Return the optimizer's state of a piece, which before the first step is all zeros."""
        state: dict[str, Tensor] = self.optimizer.state[piece.weight]
        if not state:
            zeros = torch.zeros_like(piece.weight, requires_grad=False)
            state.update(step=torch.tensor(0.0), exp_avg=zeros, exp_avg_sq=zeros.clone())
        return state

    def settings(self) -> dict[str, Any]:
        """Return the number of steps done and the settings of each parameter group, as plain values."""
        groups = [{name: group[name] for name in SETTINGS} for group in self.optimizer.param_groups]
        num_steps = max((int(self.state_of(piece)["step"]) for piece in self.pieces), default=0)
        return {"step": num_steps, "groups": groups}

    def take_settings(self, value: dict[str, Any]) -> None:
        """Take over what `settings` returned."""
        for piece in self.pieces:
            self.state_of(piece)["step"].fill_(value["step"])
        for group, saved in zip(self.optimizer.param_groups, value["groups"], strict=True):
            group.update({**saved, "betas": tuple(saved["betas"])})

    def _gather_weights(self) -> None:
        with torch.no_grad():
            by_owner = [self._pieces_of(owner) for owner in range(self._num_owners)]
            longest = max(sum(piece.weight.numel() for piece in pieces) for pieces in by_owner)
            like = next(iter(self.parameters.values()))
            mine = like.new_zeros(longest)
            own = torch.cat([piece.weight.reshape(-1) for piece in self.pieces]) if self.pieces else mine[:0]
            mine[: own.numel()] = own
            received = [torch.empty_like(mine) for _ in by_owner]
            dist.all_gather(received, mine, group=self._role.groups.dp)
            for owner, (pieces, flat) in enumerate(zip(by_owner, received, strict=True)):
                if owner != self._role.dp_rank:
                    _copy_out(flat, pieces)

    def _counted_grads(self) -> list[Tensor]:
        """Return the gradients that this rank counts: each number of the module is counted by one rank of the group."""
        is_first = self._role.tp_rank == 0
        return [piece.weight.grad for piece in self.pieces if is_first or not piece.parameter.shard.is_whole]

    def _sum_over_module(self, value: Tensor) -> Tensor:
        group = self._role.groups.whole if self.is_sharded else self._role.groups.model
        dist.all_reduce(value, group=group)
        return value

    @property
    def _device(self) -> Any:
        return next(iter(self.parameters.values())).device


def _copy_out(flat: Tensor, pieces: list[OwnedPiece]) -> None:
    offset = 0
    for piece in pieces:
        size = piece.weight.numel()
        piece.weight.copy_(flat[offset : offset + size].view_as(piece.weight))
        offset += size


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
