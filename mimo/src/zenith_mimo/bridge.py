"""Rows from an encoder's ranks to the language model's, and their gradients back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zenith_mimo.grid import HyperCommGrid
from zenith_mimo.modules import MimoModel
from zenith_mimo.planning.config import LANGUAGE, lane_partners, rows_of_lanes
from zenith_mimo.samples import MicroBatch
from zenith_mimo.topology import ModuleRole
from zenith_tune.errors import UsageError


class Channel:
    """One way for tensors between ranks; those between two ranks arrive in the order they were sent.

    Both sides know the shape from the samples that they read: nothing is sent ahead, and no device is waited for.
    """

    def __init__(self, group: Any, *, device: str, dtype: torch.dtype) -> None:
        self._group, self.device, self.dtype = group, device, dtype
        # gloo sends from the host's memory alone.
        self._wire = "cpu" if dist.get_backend(group) == "gloo" else device
        self._pending: list[tuple[Any, Tensor]] = []

    def send(self, tensor: Tensor, rank: int) -> None:
        """Start to send."""
        self._pending = [(work, kept) for work, kept in self._pending if not work.is_completed()]
        if tensor.numel():
            tensor = tensor.detach().to(self._wire).contiguous()
            # The tensor is kept until it has been taken: the backend reads from its memory.
            self._pending.append((dist.isend(tensor, rank, group=self._group), tensor))

    def receive(self, rank: int, shape: Sequence[int]) -> Tensor:
        """Wait for a tensor of that shape."""
        tensor = torch.empty(tuple(shape), dtype=self.dtype, device=self._wire)
        if tensor.numel():
            dist.recv(tensor, rank, group=self._group)
        return tensor.to(self.device)

    def flush(self) -> None:
        """Wait until everything sent has been taken."""
        while self._pending:
            work, _ = self._pending.pop(0)
            work.wait()


class _BridgeEnd:
    """The base of both ends: partners on the other side, and a leader that speaks for its tensor-parallel group."""

    def __init__(
        self, role: ModuleRole, other: HyperCommGrid, stage: int, width: int, forward: Channel, backward: Channel
    ) -> None:
        lanes = lane_partners(role.dp_rank, role.layout.dp, other.size_of("dp"))
        self._partners = [other.rank_at(pp=stage, dp=lane) for lane in lanes]
        self._role, self._width, self._forward, self._backward = role, width, forward, backward
        self._leader = role.rank_at(tp=0)
        self._rows: deque[list[int]] = deque()

    @property
    def _is_leader(self) -> bool:
        return self._role.tp_rank == 0

    def forget(self) -> None:
        """Expect no gradients of what was sent forward."""
        self._rows.clear()

    def _send(self, channel: Channel, rows: Tensor, sizes: list[int]) -> None:
        """Send every partner its rows, from the leader."""
        if self._is_leader:
            for piece, rank in zip(rows.split(sizes), self._partners, strict=True):
                channel.send(piece, rank)

    def _receive(self, channel: Channel, sizes: list[int]) -> Tensor:
        """Return the rows of all partners, which the leader hands to the rest of its tensor-parallel group."""
        if self._is_leader:
            pairs = zip(sizes, self._partners, strict=True)
            rows = torch.cat([channel.receive(rank, (size, self._width)) for size, rank in pairs])
        else:
            rows = torch.empty(sum(sizes), self._width, dtype=channel.dtype, device=channel.device)
        if self._role.layout.tp > 1 and rows.numel():
            dist.broadcast(rows, self._leader, group=self._role.groups.tp)
        return rows


class BridgeSource(_BridgeEnd):
    """The encoder's end, on its last pipeline stage."""

    def send_forward(self, rows: Tensor, rows_per_sample: list[int]) -> None:
        """Send to every lane the rows of its samples."""
        self._rows.append(rows_of_lanes(rows_per_sample, len(self._partners)))
        self._send(self._forward, rows, self._rows[-1])

    def receive_backward(self) -> Tensor:
        """Return the gradient of the oldest rows sent."""
        return self._receive(self._backward, self._rows.popleft())


class BridgeSink(_BridgeEnd):
    """The language model's end, on its first pipeline stage."""

    def receive_forward(self, rows_per_sample: list[int]) -> Tensor:
        """Return the rows of this lane's samples."""
        self._rows.append(rows_of_lanes(rows_per_sample, len(self._partners)))
        return self._receive(self._forward, self._rows[-1])

    def send_backward(self, grad: Tensor) -> None:
        """Send every partner the gradient of the oldest rows received from it."""
        self._send(self._backward, grad, self._rows.popleft())


HIDDEN = "hidden"
"""The name of what comes from the stage before in the same module; rows come under their encoder's name."""


class GradientPath:
    """The stages of the module graph that need gradients: those with trained parameters, and all after them.

    Making one is a collective of the world.
    """

    def __init__(self, model: MimoModel) -> None:
        layout = model.topology.layout
        self._encoders = layout.encoders
        places = [(name, stage) for name, module in sorted(layout.modules.items()) for stage in range(module.pp)]
        flags = torch.zeros(len(places))
        for index, (name, stage) in enumerate(places):
            role = model.topology.roles.get(name)
            if role is not None and role.pp_rank == stage:
                flags[index] = float(any(p.requires_grad for p in model.parts[name].parameters()))
        flags = flags.to(model.device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        self._trained = {place for place, flag in zip(places, flags.tolist(), strict=True) if flag}

    def is_wanted(self, name: str, stage: int | None = None) -> bool:
        """Return whether the output of a stage, or of a whole module, needs a gradient."""
        if any(other == name and (stage is None or at <= stage) for other, at in self._trained):
            return True
        return name == LANGUAGE and any(self.is_wanted(encoder) for encoder in self._encoders)


class StageLinks:
    """The links of one stage to its neighbours in the module graph."""

    def __init__(self, model: MimoModel, role: ModuleRole) -> None:
        topology = model.topology
        self._role, self._model, self._module = role, model, model.parts[role.name]
        self._forward = Channel(topology.forward_group, device=model.device, dtype=model.dtype)
        self._backward = Channel(topology.backward_group, device=model.device, dtype=model.dtype)
        ends = (model.row_width, self._forward, self._backward)
        path = GradientPath(model)
        self.has_gradient = path.is_wanted(role.name, role.pp_rank)
        """Whether the output of this stage gets a gradient."""
        self._before = None if role.is_first_stage else role.rank_at(pp=role.pp_rank - 1)
        self._after = None if role.is_last_stage else role.rank_at(pp=role.pp_rank + 1)
        self._sinks: dict[str, BridgeSink] = {}
        self._source: BridgeSource | None = None
        self._sent: deque[torch.Size] = deque()
        if role.name == LANGUAGE and role.is_first_stage:
            for name in topology.layout.encoders:
                grid = topology.grids[name]
                self._sinks[name] = BridgeSink(role, grid, grid.size_of("pp") - 1, *ends)
        if role.name != LANGUAGE and role.is_last_stage:
            self._source = BridgeSource(role, topology.grids[LANGUAGE], 0, *ends)
        self._wanted = {name: path.is_wanted(name) for name in self._sinks}
        if self._before is not None:
            self._wanted[HIDDEN] = path.is_wanted(role.name, role.pp_rank - 1)

    def receive_forward(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Wait for this stage's inputs; those whose gradients will be asked for say so."""
        inputs = {name: sink.receive_forward(batch.rows_per_sample[name]) for name, sink in self._sinks.items()}
        if self._before is not None:
            shape = self._module.hidden_shape(batch, batch.rows_per_sample.get(self._role.name, []))
            inputs[HIDDEN] = self._forward.receive(self._before, shape)
        return {name: tensor.requires_grad_(self._wanted[name]) for name, tensor in inputs.items()}

    def send_forward(self, output: Tensor, batch: MicroBatch) -> None:
        """Hand this stage's output on."""
        if self._after is not None:
            check_type(self._role.name, output, self._model.dtype)
            self._sent.append(output.shape)
            self._forward.send(output, self._after)
        elif self._source is not None:
            check_rows(self._role.name, output, batch, self._model)
            self._source.send_forward(output.detach(), batch.rows_per_sample[self._role.name])

    def receive_backward(self) -> Tensor | None:
        """Wait for the gradient of the oldest output; None at the end of the graph, where the loss is."""
        if self._after is not None:
            return self._backward.receive(self._after, self._sent.popleft())
        return None if self._source is None else self._source.receive_backward()

    def send_backward(self, inputs: dict[str, Tensor]) -> None:
        """Hand the gradients of this stage's inputs back to those that want them."""
        if self._before is not None and self._wanted[HIDDEN]:
            self._backward.send(grad_of(inputs[HIDDEN]), self._before)
        for name, sink in self._sinks.items():
            if self._wanted[name]:
                sink.send_backward(grad_of(inputs[name]))

    def forget(self) -> None:
        """Expect no gradients of what was sent forward."""
        self._sent.clear()
        for end in (*self._sinks.values(), *([self._source] if self._source else [])):
            end.forget()

    def flush(self) -> None:
        """Wait until everything sent has been taken."""
        self._forward.flush()
        self._backward.flush()


def check_type(name: str, output: Tensor, dtype: torch.dtype) -> None:
    """Raise UsageError for what the next stage would take for numbers of another type."""
    if output.dtype != dtype:
        raise UsageError(
            f"the stages of {name} must return {dtype}, the type of the model, but one returns {output.dtype}",
            hint="cast its output, or give the model that dtype.",
        )


def check_rows(name: str, rows: Tensor, batch: MicroBatch, model: MimoModel) -> None:
    """Raise UsageError for rows that are not what the language model waits for."""
    check_type(name, rows, model.dtype)
    expected = (sum(batch.rows_per_sample[name]), model.row_width)
    if tuple(rows.shape) != expected:
        raise UsageError(
            f"{name} must return {expected[0]} rows of {expected[1]} numbers for these samples, but returns "
            f"{list(rows.shape)}: check its projector and the samples' num_rows."
        )


def grad_of(tensor: Tensor) -> Tensor:
    """Return the gradient that came to a tensor, zeros where none did."""
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad


class ColocatedBridge:
    """The exchange of the encoder's rows: each rank gets those of its language lane's samples, whole under backward.

    Where the encoder has more lanes, siblings gather their rows and each keeps its own part of the gradient; where it
    has fewer, each takes its part of the rows and the siblings gather the gradient. Making one is a collective.
    """

    def __init__(
        self,
        encoder: HyperCommGrid,
        language: HyperCommGrid,
        *,
        backend: str | None = None,
        timeout: timedelta = timedelta(minutes=10),
    ) -> None:
        dp, language_dp = encoder.size_of("dp"), language.size_of("dp")
        self.is_fan_in = dp > language_dp
        self.ratio = max(dp, language_dp) // min(dp, language_dp)
        self._group: Any = None
        self._index = 0
        if self.ratio > 1:
            self._make_group(*((encoder, language) if self.is_fan_in else (language, encoder)), backend, timeout)

    def _make_group(self, many: HyperCommGrid, few: HyperCommGrid, backend: str | None, timeout: timedelta) -> None:
        tp = many.size_of("tp")
        siblings = [
            [few.rank_at(tp=place + lane * tp, dp=outer) for lane in range(self.ratio)]
            for outer in range(few.size_of("dp"))
            for place in range(tp)
        ]
        self._group, _ = dist.new_subgroups_by_enumeration(siblings, backend=backend, timeout=timeout)
        self._index = many.coordinates(dist.get_rank())["dp"] % self.ratio

    def carry(self, rows: Tensor, encoder_rows: list[int], language_rows: list[int]) -> Tensor:
        """Return the rows of this rank's language lane, given the rows per sample of both its lanes."""
        if self.ratio == 1:
            return rows
        sizes = rows_of_lanes(language_rows if self.is_fan_in else encoder_rows, self.ratio)
        return (_Gather if self.is_fan_in else _Slice).apply(rows, self, sizes)

    def gather(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """Return the rows of all siblings, which have `sizes`."""
        longest = max(sizes)
        if longest == 0:
            return rows.clone()
        # Every rank must bring the same shape to a gather.
        padded = rows.new_zeros(longest, *rows.shape[1:])
        padded[: rows.shape[0]] = rows
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self._group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    def own_part(self, rows: Tensor, sizes: list[int]) -> Tensor:
        """Return this sibling's part of the rows of all."""
        return rows.split(sizes)[self._index].contiguous()

    def destroy(self) -> None:
        """Give the group back; a second call does nothing."""
        if self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None


class _Gather(torch.autograd.Function):
    """Gather rows; keep the own part of the gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bridge: ColocatedBridge, sizes: list[int]) -> Tensor:
        """Return the rows of all siblings."""
        ctx.bridge, ctx.sizes = bridge, sizes
        return bridge.gather(rows, sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the own rows."""
        return ctx.bridge.own_part(grad, ctx.sizes), None, None


class _Slice(torch.autograd.Function):
    """Keep the own part of the rows; gather the gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bridge: ColocatedBridge, sizes: list[int]) -> Tensor:
        """Return this sibling's rows."""
        ctx.bridge, ctx.sizes = bridge, sizes
        return bridge.own_part(rows, sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of all rows of the encoder's lane."""
        return ctx.bridge.gather(grad.contiguous(), ctx.sizes), None, None
