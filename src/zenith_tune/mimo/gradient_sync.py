"""Gradients made whole: summed over a module's replicas, divided by the tokens of the global batch."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from zenith_tune.mimo.comm.topology import ModuleRole
from zenith_tune.mimo.model.modules import MimoModel
from zenith_tune.mimo.schedule import LossSum


def sum_over_world(total: LossSum, device: str) -> LossSum:
    """Return the loss and the tokens of the global batch, the same on every rank."""
    both = torch.tensor([total.loss, total.num_tokens], dtype=torch.float64, device=device)
    dist.all_reduce(both)
    loss, num_tokens = both.tolist()
    return LossSum(loss=loss, num_tokens=int(num_tokens))


def finish_gradients(model: MimoModel, num_tokens: int) -> None:
    """Sum each module's gradients over its own replicas, and scale all by the same number of tokens.

    Replicas are as many as the module's dp, which differs between modules: to average over them would weigh the
    modules differently, and replicas with more tokens too little.
    """
    scale = 1.0 / num_tokens if num_tokens else 1.0
    for name, role in model.topology.roles.items():
        _finish(list(model.parts[name].parameters()), role, scale)


def _finish(parameters: list[Tensor], role: ModuleRole, scale: float) -> None:
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    grads = [parameter.grad for parameter in parameters]
    if role.layout.dp == 1:
        for grad in grads:
            grad.mul_(scale)
        return
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat, group=role.groups.dp)
    flat.mul_(scale)
    for grad, piece in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(piece.view_as(grad))
