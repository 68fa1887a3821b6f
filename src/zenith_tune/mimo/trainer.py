"""One training step of a multimodal model, whatever its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from zenith_tune.mimo.modules import MimoModel
from zenith_tune.mimo.optimizer import MimoOptimizer
from zenith_tune.mimo.samples import MicroBatch, Sample, collate, lane_samples
from zenith_tune.mimo.schedule import LossSum, make_schedule
from zenith_tune.mimo.topology import ModuleRole, peers_expected


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step reports, the same on every rank."""

    loss: float
    """Per token that counts."""
    num_tokens: int
    grad_norm: float | None
    """Before clipping; None where the step was not taken."""
    num_zeros: int | None
    success: bool


class Trainer:
    """Train a model step by step; making one and each step are collectives of the whole world."""

    def __init__(
        self,
        model: MimoModel,
        optimizer: MimoOptimizer,
        *,
        micro_batch_size: int,
        global_batch_size: int,
    ) -> None:
        layout = model.topology.layout
        self._num_microbatches = layout.num_microbatches(micro_batch_size, global_batch_size)
        self.model, self.optimizer = model, optimizer
        self._schedule = make_schedule(model)
        self.iteration = 0

    def step(self, batch: Sequence[Sample]) -> StepResult:
        """Train on one global batch."""
        with peers_expected(f"iteration {self.iteration + 1}"):
            loss, num_tokens = self.accumulate(batch)
            success, norm, num_zeros = self.optimizer.step()
        self.iteration += 1
        return StepResult(loss=loss, num_tokens=num_tokens, grad_norm=norm, num_zeros=num_zeros, success=success)

    def close(self) -> None:
        """Give all groups back; the model cannot be trained any more."""
        self._schedule.close()
        self.model.topology.destroy()

    def accumulate(self, batch: Sequence[Sample]) -> tuple[float, int]:
        """Make the gradients of a global batch, and return its loss per token and its tokens."""
        self.optimizer.zero_grad()

        def read(name: str, index: int) -> MicroBatch:
            role = self.model.topology.roles[name]
            return collate(
                lane_samples(
                    batch, index=index, num_microbatches=self._num_microbatches, lane=role.dp_rank, dp=role.layout.dp
                )
            )

        here = self._schedule.run(read, self._num_microbatches, self.optimizer.get_loss_scale())
        total = sum_over_world(here, self.model.device)
        finish_gradients(self.model, total.num_tokens)
        return total.loss / max(total.num_tokens, 1), total.num_tokens
