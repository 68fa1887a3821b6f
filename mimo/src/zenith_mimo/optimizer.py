"""One optimizer over modules that live on different ranks, its state whole or shared out over data-parallel ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zenith_mimo.gradients import ModuleGradients, full_precision, owned_rows
from zenith_mimo.grid import HyperCommGrid
from zenith_mimo.modules import MimoModel
from zenith_mimo.tensor_parallel import LogicalShard
from zenith_mimo.topology import ModuleGroups, ModuleRole
from zenith_tune.errors import UsageError

_LARGEST = 1e30
"""Products with more than that leave single precision."""
_PLAIN = (bool, int, float, str, tuple, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW, clipping, and the sharding of its state; the same for every module."""

    lr: float = 1e-3
    weight_decay: float = 0.01
    """Decay of matrices; vectors are not decayed."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    clip_grad: float = 1.0
    """The largest global norm; 0 to leave gradients as they are."""
    use_distributed_optimizer: bool = False
    """Share each module's optimizer state out to its data-parallel ranks (ZeRO-1)."""
    num_distributed_optimizer_instances: int = 1
    loss_scale: float = 1.0
    """Factor of the loss before backward."""
    log_num_zeros_in_grad: bool = False
    bucket_numbers: int = 25_000_000
    """Gradients that are summed over replicas at once."""

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "eps", "clip_grad"):
            value: float = getattr(self, name)
            if not 0 <= value <= _LARGEST:
                raise UsageError(f"{name} must be 0 to {_LARGEST:g}, but got {value:g}: correct it.")


COPIES, SCHEDULE = "full_precision", "schedule"
"""Entries of a module's state: weights that are more precise than the model's, and its learning-rate schedule."""
MakeSchedule = Callable[[str, Optimizer], LRScheduler]
"""Makes one of torch's learning-rate schedules for the module of that name."""
MakeOptimizer = Callable[[str, list[dict[str, Any]]], Optimizer]
"""Makes one of torch's optimizers for the module of that name, of parameter groups that have their weight decay."""


class OwnedPiece:
    """The rows of one parameter that this rank updates, in full precision.

    They are a view of the parameter, or a copy of higher precision from which each update is written back.
    """

    def __init__(self, name: str, parameter: nn.Parameter, start: int, stop: int) -> None:
        self.name, self.parameter = name, parameter
        self.rows: Tensor = parameter.detach()[start:stop]
        self.weight: Tensor = self.rows.to(full_precision(parameter.dtype)).requires_grad_()
        self.shard: LogicalShard = parameter.shard.rows(start, stop)

    @property
    def is_copy(self) -> bool:
        """Whether the model has these rows in a lower precision."""
        return bool(self.weight.dtype != self.rows.dtype)

    def take_changes(self) -> None:
        """Take over each number of the model that is not what the last update made it, as after loading weights."""
        if self.is_copy:
            weight = self.weight.detach()
            weight.copy_(torch.where(weight.to(self.rows.dtype) == self.rows, weight, self.rows))


class ModuleOptimizer:
    """The optimizer of one module's trained parameters on this rank; frozen ones are left as they are."""

    def __init__(
        self,
        module: nn.Module,
        role: ModuleRole,
        config: OptimizerConfig,
        device: str,
        make_schedule: MakeSchedule | None = None,
        make_optimizer: MakeOptimizer | None = None,
    ) -> None:
        self._role, self._config, self._device = role, config, device
        self.is_sharded = config.use_distributed_optimizer and role.layout.dp > 1
        self._num_owners, self._owner = (role.layout.dp, role.dp_rank) if self.is_sharded else (1, 0)
        self.parameters: dict[str, nn.Parameter] = dict(module.named_parameters())
        self.trained = {name: parameter for name, parameter in self.parameters.items() if parameter.requires_grad}
        for name, parameter in self.trained.items():
            if parameter.dim() == 0:
                problem = f"trained parameters must have a dimension, but {role.name} has the scalar {name}"
                raise UsageError(problem, hint="give it the shape [1], or freeze it.")
        self.gradients = ModuleGradients(
            self.trained.values(),
            role.groups.dp,
            dp=role.layout.dp,
            num_owners=self._num_owners,
            bucket=config.bucket_numbers,
        )
        self.pieces = [OwnedPiece(name, self.trained[name], *span) for name, span in self._spans_of(self._owner)]
        groups = [
            {"params": [p.weight for p in self.pieces if p.weight.dim() > 1], "weight_decay": config.weight_decay},
            {"params": [p.weight for p in self.pieces if p.weight.dim() == 1], "weight_decay": 0.0},
        ]
        self.optimizer: Optimizer = (
            torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=device == "cuda" or None)
            if make_optimizer is None
            else make_optimizer(role.name, groups)
        )
        self.schedule = None if make_schedule is None else make_schedule(role.name, self.optimizer)

    def _spans_of(self, owner: int) -> list[tuple[str, tuple[int, int]]]:
        """Return the rows of each parameter that an owner updates."""
        spans = [(name, owned_rows(p.shape[0], owner, self._num_owners)) for name, p in self.trained.items()]
        return [(name, span) for name, span in spans if span[1] > span[0]]

    def finish_gradients(self, scale: float) -> None:
        """Sum the gradients over the replicas, and tied ones over both ends of the module; scale them."""
        self.gradients.finish(scale)
        role, last = self._role, self._role.layout.pp - 1
        for piece in self.pieces:
            if getattr(piece.parameter, "is_tied", False):
                _add_from(role.rank_at(pp=last if role.is_first_stage else 0), self.grad_of(piece), role.groups.model)

    def grad_of(self, piece: OwnedPiece) -> Tensor:
        """Return the gradient of a piece, summed over the replicas."""
        return self.gradients.grad_rows(piece.parameter, self._owner)

    def prepare_grads(self) -> bool:
        """Take the gradients over, unscaled, and return whether one is infinite or not a number."""
        for piece in self.pieces:
            piece.weight.grad = self.grad_of(piece)
        if not self.pieces:
            return False
        grads = self._grads()
        if self._config.loss_scale != 1.0:
            torch._foreach_div_(grads, self._config.loss_scale)
        return not bool(torch.isfinite(torch.stack(torch._foreach_norm(grads, math.inf))).all())

    def squared_norm(self) -> float:
        """Return the squared norm of the whole module's gradient, the same on all its ranks."""
        grads = self._counted_grads()
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        if grads:
            total += torch.stack(torch._foreach_norm(grads, 2, dtype=torch.float64)).square().sum()
        return float(self._sum_over_module(total))

    def count_zeros(self) -> int:
        """Return the zeros in the whole module's gradient, the same on all its ranks."""
        count = sum(grad.numel() - int(grad.count_nonzero()) for grad in self._counted_grads())
        return int(self._sum_over_module(torch.tensor(float(count), dtype=torch.float64, device=self._device)))

    def clip(self, factor: float) -> None:
        """Scale this rank's gradients."""
        if self.pieces:
            torch._foreach_mul_(self._grads(), factor)

    def step(self) -> bool:
        """Update the owned rows and fetch the others; return whether it succeeded."""
        self.take_changes()
        is_done = self.optimizer.step() is not False
        if self.schedule is not None:
            self.schedule.step()
        self.write_back()
        return is_done

    def write_back(self) -> None:
        """Give the model the owned rows of full precision, and those of the other owners."""
        copies = [piece for piece in self.pieces if piece.is_copy]
        if copies:
            torch._foreach_copy_([piece.rows for piece in copies], [piece.weight.detach() for piece in copies])
        if self.is_sharded and self.trained:
            self._gather_weights()

    def take_changes(self) -> None:
        """Take over weights that were loaded into the model since it was last updated."""
        for piece in self.pieces:
            piece.take_changes()

    def state_dict(self) -> dict[str, Any]:
        """Return AdamW's state, and the owned rows that are more precise than the model's, by name."""
        self.take_changes()
        copies = {piece.name: piece.weight.detach() for piece in self.pieces if piece.is_copy}
        return {**self.optimizer.state_dict(), COPIES: copies, SCHEDULE: self._schedule_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` returned; where the model's weights are others, these count."""
        self.optimizer.load_state_dict(dict(state))
        self._take_schedule(state.get(SCHEDULE))
        for piece in self.pieces:
            if (saved := state.get(COPIES, {}).get(piece.name)) is not None and piece.is_copy:
                piece.weight.detach().copy_(saved)

    def zero_grad(self) -> None:
        """Begin a step without gradients."""
        self.optimizer.zero_grad()
        self.gradients.clear()

    def state_of(self, piece: OwnedPiece) -> dict[str, Any]:
        """Return the optimizer's state of a piece, which before the first step is all zeros."""
        if piece.weight not in self.optimizer.state:
            self._make_state()
        state: dict[str, Any] = self.optimizer.state[piece.weight]
        return state

    def moments_of(self, piece: OwnedPiece) -> dict[str, Tensor]:
        """Return the state of a piece that has a number for each of its own."""
        state = {name: value for name, value in self.state_of(piece).items() if isinstance(value, Tensor)}
        found = {name: value for name, value in state.items() if value.shape == piece.weight.shape}
        other = sorted(name for name in state.keys() - found.keys() if state[name].dim())
        if other:
            kind = type(self.optimizer).__name__
            problem = (
                f"an optimizer must keep one number for each weight, but {kind} keeps {', '.join(other)} otherwise"
            )
            raise UsageError(problem, hint="take another optimizer for what is split or saved.")
        return found

    def _make_state(self) -> None:
        """Have the optimizer make its state by a step that changes nothing."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        grads = [piece.weight.grad for piece in self.pieces]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0
        for piece in self.pieces:
            piece.weight.grad = torch.zeros_like(piece.weight, requires_grad=False)
        self.optimizer.step()
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for piece, grad in zip(self.pieces, grads, strict=True):
            piece.weight.grad = grad
            if isinstance(step := self.optimizer.state[piece.weight].get("step"), Tensor):
                step.fill_(0)

    def settings(self) -> dict[str, Any]:
        """Return the number of steps done and the settings of each parameter group, as plain values."""
        groups = [
            {name: value for name, value in group.items() if isinstance(value, _PLAIN)}
            for group in self.optimizer.param_groups
        ]
        scalars = {name: float(value) for piece in self.pieces[:1] for name, value in self._scalars_of(piece).items()}
        num_steps = int(scalars.get("step", 0))
        return {"step": num_steps, "scalars": scalars, "groups": groups, SCHEDULE: self._schedule_state()}

    def _scalars_of(self, piece: OwnedPiece) -> dict[str, Tensor]:
        """Return the state of a piece that is the same for all of them: its steps, and what follows from them."""
        state = self.state_of(piece).items()
        return {name: value for name, value in state if isinstance(value, Tensor) and not value.dim()}

    def _schedule_state(self) -> dict[str, Any] | None:
        return None if self.schedule is None else self.schedule.state_dict()

    def take_settings(self, value: dict[str, Any]) -> None:
        """Take over what `settings` returned."""
        saved_scalars = {"step": value["step"], **value.get("scalars", {})}
        for piece in self.pieces:
            for name, scalar in self._scalars_of(piece).items():
                scalar.fill_(saved_scalars.get(name, 0.0))
        for group, saved in zip(self.optimizer.param_groups, value["groups"], strict=True):
            group.update({name: tuple(one) if isinstance(one, list) else one for name, one in saved.items()})
        self._take_schedule(value.get(SCHEDULE))

    def _take_schedule(self, state: dict[str, Any] | None) -> None:
        if (state is None) != (self.schedule is None):
            there, here = ("none", "one") if state is None else ("one", "none")
            raise UsageError(
                f"the learning-rate schedule of {self._role.name} must be that of the checkpoint, but it has {there} "
                f"and this run {here}",
                hint="give the same schedule, or load the weights only.",
            )
        if self.schedule is not None and state is not None:
            self.schedule.load_state_dict(state)

    def _gather_weights(self) -> None:
        by_owner = [
            [self.trained[name].detach()[start:stop] for name, (start, stop) in self._spans_of(owner)]
            for owner in range(self._num_owners)
        ]
        longest = max(sum(rows.numel() for rows in owned) for owned in by_owner)
        mine = next(iter(self.trained.values())).detach().new_zeros(longest)
        own = torch.cat([rows.reshape(-1) for rows in by_owner[self._owner]] or [mine[:0]])
        mine[: own.numel()] = own
        received = [torch.empty_like(mine) for _ in by_owner]
        dist.all_gather(received, mine, group=self._role.groups.dp)
        for owner, (owned, flat) in enumerate(zip(by_owner, received, strict=True)):
            if owner != self._owner:
                _copy_out(flat, owned)

    def _grads(self) -> list[Tensor]:
        return [piece.weight.grad for piece in self.pieces]

    def _counted_grads(self) -> list[Tensor]:
        """Return the gradients that this rank counts: each number of the module is counted by one rank of the group."""
        counted = [piece for piece in self.pieces if not self._role.repeats(piece.parameter)]
        is_first = self._role.tp_rank == 0
        return [piece.weight.grad for piece in counted if is_first or not piece.parameter.shard.is_whole]

    def _sum_over_module(self, value: Tensor) -> Tensor:
        group = self._role.groups.whole if self.is_sharded else self._role.groups.model
        dist.all_reduce(value, group=group)
        return value


def _add_from(rank: int, tensor: Tensor, group: Any) -> None:
    """Add another rank's tensor, which it adds this one to."""
    # gloo sends from the host's memory alone.
    mine = tensor.to("cpu" if dist.get_backend(group) == "gloo" else tensor.device).contiguous()
    theirs = torch.empty_like(mine)
    ways = [dist.P2POp(dist.isend, mine, rank, group), dist.P2POp(dist.irecv, theirs, rank, group)]
    for work in dist.batch_isend_irecv(ways):
        work.wait()
    tensor.add_(theirs.to(tensor.device))


def _copy_out(flat: Tensor, owned: list[Tensor]) -> None:
    offset = 0
    for rows in owned:
        rows.copy_(flat[offset : offset + rows.numel()].view_as(rows))
        offset += rows.numel()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleOptimizerInfo:
    """One module's optimizer; without one where the module is not on this rank."""

    optimizer: ModuleOptimizer | None
    grid: HyperCommGrid
    pg_collection: ModuleGroups | None
    is_active: bool


class MimoOptimizer:
    """The optimizer of all modules together; every rank of the world calls each method that says so."""

    def __init__(
        self, module_infos: Mapping[str, ModuleOptimizerInfo], config: OptimizerConfig, device: str | None = None
    ) -> None:
        self.module_infos = dict(sorted(module_infos.items()))
        self.config = config
        self._device = device or ("cuda" if dist.get_backend() == "nccl" else "cpu")

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
        return bool(self._agree(float(self.step_with_ready_grads()), dist.ReduceOp.MIN)), norm, num_zeros

    def step_with_ready_grads(self) -> bool:
        """Update by the gradients as they are, and return whether this rank did."""
        done = [optimizer.step() for optimizer in self.active.values()]
        return all(done)

    def state_dict(self) -> dict[str, dict[str, Any] | None]:
        """Return the state of each module, None of those that are not on this rank."""
        active = self.active
        return {name: active[name].state_dict() if name in active else None for name in self.module_infos}

    def load_state_dict(self, state: Mapping[str, dict[str, Any] | None]) -> None:
        """Take the state of the modules on this rank; what is missing or elsewhere is left as it is."""
        for name, optimizer in self.active.items():
            if (module_state := state.get(name)) is not None:
                optimizer.load_state_dict(module_state)

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


def get_mimo_optimizer(
    model: MimoModel,
    config: OptimizerConfig,
    schedule: MakeSchedule | None = None,
    *,
    optimizer: MakeOptimizer | None = None,
) -> MimoOptimizer:
    """Return the optimizer of a model, with one part for each module on this rank.

    A schedule, `lambda module, optimizer: CosineAnnealingLR(optimizer, 1000)`, moves on with each update. Another
    optimizer than AdamW, `lambda module, groups: SGD(groups, lr=0.1, momentum=0.9)`, treats each number by itself.
    """
    if config.num_distributed_optimizer_instances != 1:
        raise UsageError(
            f"num_distributed_optimizer_instances must be 1, but got {config.num_distributed_optimizer_instances}: "
            f"a module's optimizer state is shared out over all its data-parallel ranks, not over groups of them."
        )
    infos = {}
    for name, grid in model.topology.grids.items():
        role = model.topology.roles.get(name)
        infos[name] = ModuleOptimizerInfo(
            optimizer=ModuleOptimizer(model.parts[name], role, config, model.device, schedule, optimizer)
            if role
            else None,
            grid=grid,
            pg_collection=role.groups if role else None,
            is_active=role is not None,
        )
    return MimoOptimizer(infos, config, model.device)
