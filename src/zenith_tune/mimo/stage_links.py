"""What a pipeline stage takes from the stages before it and gives to those after it."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from zenith_tune.mimo.channel import Channel
from zenith_tune.mimo.comm.bridge import BridgeSink, BridgeSource
from zenith_tune.mimo.comm.topology import ModuleRole
from zenith_tune.mimo.model.modules import MimoModel
from zenith_tune.mimo.module_layout import LANGUAGE

HIDDEN = "hidden"
"""The name of what comes from the stage before in the same module; rows come under their encoder's name."""


class StageLinks:
    """Join one stage to its neighbours in the module graph."""

    def __init__(self, model: MimoModel, role: ModuleRole) -> None:
        topology = model.topology
        self._role = role
        self._forward = Channel(topology.forward_group, device=model.device, dtype=model.dtype)
        self._backward = Channel(topology.backward_group, device=model.device, dtype=model.dtype)
        ends = (self._forward, self._backward, model.device, model.dtype)
        self._before = None if role.is_first_stage else role.rank_at(pp=role.pp_rank - 1)
        self._after = None if role.is_last_stage else role.rank_at(pp=role.pp_rank + 1)
        self._sinks: dict[str, BridgeSink] = {}
        self._source: BridgeSource | None = None
        self._sent: deque[torch.Size] = deque()
        if role.name == LANGUAGE and role.is_first_stage:
            encoders = topology.layout.encoders
            self._sinks = {name: BridgeSink(role, topology.grids[name], *ends) for name in encoders}
        if role.name != LANGUAGE and role.is_last_stage:
            self._source = BridgeSource(role, topology.grids[LANGUAGE], *ends)

    def receive_forward(self) -> dict[str, Tensor]:
        """Wait for this stage's inputs, whose gradients will be asked for."""
        if self._before is not None:
            return {HIDDEN: self._forward.receive(self._before).requires_grad_()}
        return {name: sink.receive_forward().requires_grad_() for name, sink in self._sinks.items()}

    def send_forward(self, output: Tensor, rows_per_sample: list[int]) -> None:
        """Hand this stage's output on."""
        if self._after is not None:
            self._sent.append(output.shape)
            self._forward.send(output, self._after, with_shape=True)
        elif self._source is not None:
            self._source.send_forward(output.detach(), rows_per_sample)

    def receive_backward(self) -> Tensor | None:
        """Wait for the gradient of the oldest output; None at the end of the graph, where the loss is."""
        if self._after is not None:
            return self._backward.receive(self._after, self._sent.popleft())
        return None if self._source is None else self._source.receive_backward()

    def send_backward(self, inputs: dict[str, Tensor]) -> None:
        """Hand the gradients of this stage's inputs back."""
        if self._before is not None:
            self._backward.send(grad_of(inputs[HIDDEN]), self._before, with_shape=False)
        for name, sink in self._sinks.items():
            sink.send_backward(grad_of(inputs[name]))

    def flush(self) -> None:
        """Wait until everything sent has been taken."""
        self._forward.flush()
        self._backward.flush()


def grad_of(tensor: Tensor) -> Tensor:
    """Return the gradient that came to a tensor, zeros where none did."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
