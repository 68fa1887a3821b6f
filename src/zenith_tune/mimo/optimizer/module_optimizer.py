"""The optimizer of one module on one rank, its state whole or shared out over the data-parallel ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zenith_tune.errors import UsageError
from zenith_tune.mimo.comm.topology import ModuleRole
from zenith_tune.mimo.model.tensor_parallel import LogicalShard

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
