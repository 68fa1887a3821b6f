"""Rows from an encoder's ranks to the language model's, and their gradients back."""

from __future__ import annotations

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

from zenith_tune.errors import UsageError
from zenith_tune.mimo.channel import MAX_DIMS, Channel, shape_header, shape_of
from zenith_tune.mimo.comm.grid import HyperCommGrid
from zenith_tune.mimo.comm.topology import ModuleRole
from zenith_tune.mimo.lane_partners import lane_partners


class _BridgeEnd:
    """What both ends share: partners on the other side, and a leader that speaks for its tensor-parallel group."""

    def __init__(self, role: ModuleRole, forward: Channel, backward: Channel, device: str, dtype: torch.dtype) -> None:
        self._role, self._forward, self._backward = role, forward, backward
        self._device, self._dtype = device, dtype
        self._is_leader = role.tp_rank == 0
        self._leader = role.rank_at(tp=0)

    def _to_group(self, tensor: Tensor | None, shape: torch.Size | None) -> Tensor:
        """Give the leader's tensor to the rest of its tensor-parallel group."""
        if self._role.layout.tp == 1:
            assert tensor is not None
            return tensor
        group = self._role.groups.tp
        if shape is None:
            header = torch.empty(MAX_DIMS + 1, dtype=torch.int64) if tensor is None else shape_header(tensor)
            header = header.to(self._device)
            dist.broadcast(header, self._leader, group=group)
            shape = shape_of(header)
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device) if tensor is None else tensor.contiguous()
        if tensor.numel():
            dist.broadcast(tensor, self._leader, group=group)
        return tensor


class BridgeSource(_BridgeEnd):
    """The encoder's end, on its last pipeline stage."""

    def __init__(
        self,
        role: ModuleRole,
        language: HyperCommGrid,
        forward: Channel,
        backward: Channel,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(role, forward, backward, device, dtype)
        lanes = lane_partners(role.dp_rank, role.layout.dp, language.size_of("dp"))
        self._partners = [language.rank_at(dp=lane) for lane in lanes]
        self._sent: deque[list[torch.Size]] = deque()

    def send_forward(self, rows: Tensor, rows_per_sample: list[int]) -> None:
        """Send to every lane the rows of its samples."""
        share = len(rows_per_sample) // len(self._partners)
        sizes = [sum(rows_per_sample[i * share : (i + 1) * share]) for i in range(len(self._partners))]
        if sum(sizes) != rows.shape[0]:
            raise UsageError(
                f"{self._role.name} must give as many rows as its samples have, but got {rows.shape[0]} rows and "
                f"{sum(sizes)} in {len(rows_per_sample)} samples for {len(self._partners)} lanes."
            )
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

    def __init__(
        self,
        role: ModuleRole,
        encoder: HyperCommGrid,
        forward: Channel,
        backward: Channel,
        device: str,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(role, forward, backward, device, dtype)
        lanes = lane_partners(role.dp_rank, role.layout.dp, encoder.size_of("dp"))
        self._partners = [encoder.rank_at(pp=encoder.size_of("pp") - 1, dp=lane) for lane in lanes]
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
