"""Rows from an encoder's ranks to the language model's, and their gradients back."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zenith_tune.mimo.grid import HyperCommGrid
from zenith_tune.mimo.module_layout import LANGUAGE, lane_partners, rows_of_lanes
from zenith_tune.mimo.modules import MimoModel
from zenith_tune.mimo.topology import ModuleRole

MAX_DIMS = 4


class Channel:
    """Carry tensors one way between ranks; those between two ranks arrive in the order they were sent."""

    def __init__(self, group: Any, *, device: str, dtype: torch.dtype) -> None:
        self._group, self.device, self.dtype = group, device, dtype
        self._pending: list[tuple[Any, Tensor]] = []

    def send(self, tensor: Tensor, rank: int, *, with_shape: bool) -> None:
        """Start to send; the other side must ask for the shape if and only if it is sent."""
        if with_shape:
            self._start(shape_header(tensor).to(self.device), rank)
        if tensor.numel():
            self._start(tensor.detach().contiguous(), rank)

    def receive(self, rank: int, shape: torch.Size | None = None) -> Tensor:
        """Wait for a tensor, whose shape is sent with it unless it is known."""
        if shape is None:
            header = torch.empty(MAX_DIMS + 1, dtype=torch.int64, device=self.device)
            dist.recv(header, rank, group=self._group)
            shape = shape_of(header)
        tensor = torch.empty(shape, dtype=self.dtype, device=self.device)
        if tensor.numel():
            dist.recv(tensor, rank, group=self._group)
        return tensor

    def flush(self) -> None:
        """Wait until everything sent has been taken."""
        while self._pending:
            work, _ = self._pending.pop(0)
            work.wait()

    def _start(self, tensor: Tensor, rank: int) -> None:
        self._pending = [(work, kept) for work, kept in self._pending if not work.is_completed()]
        # The tensor is kept until it has been taken: the backend reads from its memory.
        self._pending.append((dist.isend(tensor, rank, group=self._group), tensor))


def shape_header(tensor: Tensor) -> Tensor:
    """Return the shape as a tensor of fixed length."""
    return torch.tensor([tensor.dim(), *tensor.shape, *[0] * (MAX_DIMS - tensor.dim())])


def shape_of(header: Tensor) -> torch.Size:
    """Return the shape that a header holds."""
    num_dims, *sizes = header.tolist()
    return torch.Size(sizes[:num_dims])


class _BridgeEnd:
    """What both ends share: partners on the other side, and a leader that speaks for its tensor-parallel group."""

    def __init__(self, role: ModuleRole, other: HyperCommGrid, stage: int, forward: Channel, backward: Channel) -> None:
        lanes = lane_partners(role.dp_rank, role.layout.dp, other.size_of("dp"))
        self._partners = [other.rank_at(pp=stage, dp=lane) for lane in lanes]
        self._role, self._forward, self._backward = role, forward, backward
        self._is_leader = role.tp_rank == 0
        self._leader = role.rank_at(tp=0)

    def _to_group(self, tensor: Tensor | None, shape: torch.Size | None) -> Tensor:
        """Give the leader's tensor to the rest of its tensor-parallel group."""
        if self._role.layout.tp == 1:
            assert tensor is not None
            return tensor
        group, device, dtype = self._role.groups.tp, self._forward.device, self._forward.dtype
        if shape is None:
            header = torch.empty(MAX_DIMS + 1, dtype=torch.int64) if tensor is None else shape_header(tensor)
            header = header.to(device)
            dist.broadcast(header, self._leader, group=group)
            shape = shape_of(header)
        tensor = torch.empty(shape, dtype=dtype, device=device) if tensor is None else tensor.contiguous()
        if tensor.numel():
            dist.broadcast(tensor, self._leader, group=group)
        return tensor


class BridgeSource(_BridgeEnd):
    """The encoder's end, on its last pipeline stage."""

    def __init__(self, role: ModuleRole, language: HyperCommGrid, forward: Channel, backward: Channel) -> None:
        super().__init__(role, language, 0, forward, backward)
        self._sent: deque[list[torch.Size]] = deque()

    def send_forward(self, rows: Tensor, rows_per_sample: list[int]) -> None:
        """Send to every lane the rows of its samples."""
        sizes = rows_of_lanes(rows_per_sample, len(self._partners))
        pieces = rows.split(sizes)
        self._sent.append([piece.shape for piece in pieces])
        if self._is_leader:
            for piece, rank in zip(pieces, self._partners, strict=True):
                self._forward.send(piece, rank, with_shape=True)

    def receive_backward(self) -> Tensor:
        """Return the gradient of the oldest rows sent."""
        shapes = self._sent.popleft()
        grad = None
        if self._is_leader:
            pairs = zip(shapes, self._partners, strict=True)
            grad = torch.cat([self._backward.receive(rank, shape) for shape, rank in pairs])
        return self._to_group(grad, torch.Size([sum(shape[0] for shape in shapes), *shapes[0][1:]]))


class BridgeSink(_BridgeEnd):
    """The language model's end, on its first pipeline stage."""

    def __init__(self, role: ModuleRole, encoder: HyperCommGrid, forward: Channel, backward: Channel) -> None:
        super().__init__(role, encoder, encoder.size_of("pp") - 1, forward, backward)
        self._received: deque[list[int]] = deque()

    def receive_forward(self) -> Tensor:
        """Return the rows of this lane's samples."""
        rows = None
        if self._is_leader:
            pieces = [self._forward.receive(rank) for rank in self._partners]
            self._received.append([piece.shape[0] for piece in pieces])
            rows = torch.cat(pieces)
        return self._to_group(rows, None)

    def send_backward(self, grad: Tensor) -> None:
        """Send every partner the gradient of the oldest rows received from it."""
        if self._is_leader:
            for piece, rank in zip(grad.split(self._received.popleft()), self._partners, strict=True):
                self._backward.send(piece, rank, with_shape=False)


HIDDEN = "hidden"
"""The name of what comes from the stage before in the same module; rows come under their encoder's name."""


class StageLinks:
    """Join one stage to its neighbours in the module graph."""

    def __init__(self, model: MimoModel, role: ModuleRole) -> None:
        topology = model.topology
        self._role = role
        self._forward = Channel(topology.forward_group, device=model.device, dtype=model.dtype)
        self._backward = Channel(topology.backward_group, device=model.device, dtype=model.dtype)
        ends = (self._forward, self._backward)
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


class ColocatedBridge:
    """Hand each rank the encoder's rows of the samples that its language lane reads, whole under backward.

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

    def carry(self, rows: Tensor, rows_per_sample: list[int]) -> Tensor:
        """Return the rows of this rank's language lane; `rows_per_sample` is of its encoder lane."""
        if self.ratio == 1:
            return rows
        if self.is_fan_in:
            return _Gather.apply(rows, self)
        return _Slice.apply(rows, self, rows_of_lanes(rows_per_sample, self.ratio))

    def exchange_sizes(self, size: int, device: torch.device) -> list[int]:
        """Return the row counts of all siblings."""
        sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(self.ratio)]
        dist.all_gather(sizes, torch.tensor([size], device=device), group=self._group)
        return [int(count) for count in sizes]

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
    def forward(ctx: Any, rows: Tensor, bridge: ColocatedBridge) -> Tensor:
        """Return the rows of all siblings."""
        ctx.bridge, ctx.sizes = bridge, bridge.exchange_sizes(rows.shape[0], rows.device)
        return bridge.gather(rows, ctx.sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the own rows."""
        return ctx.bridge.own_part(grad, ctx.sizes), None


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
