"""Tensors sent from rank to rank, without waiting for the other side to take them."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

MAX_DIMS = 4


class Channel:
    """Carry tensors one way between ranks; those between two ranks arrive in the order they were sent."""

    def __init__(self, group: Any, *, device: str, dtype: torch.dtype) -> None:
        self._group, self._device, self._dtype = group, device, dtype
        self._pending: list[tuple[Any, Tensor]] = []

    def send(self, tensor: Tensor, rank: int, *, with_shape: bool) -> None:
        """Start to send; the other side must ask for the shape if and only if it is sent."""
        if with_shape:
            self._start(shape_header(tensor).to(self._device), rank)
        if tensor.numel():
            self._start(tensor.detach().contiguous(), rank)

    def receive(self, rank: int, shape: torch.Size | None = None) -> Tensor:
        """Wait for a tensor, whose shape is sent with it unless it is known."""
        if shape is None:
            header = torch.empty(MAX_DIMS + 1, dtype=torch.int64, device=self._device)
            dist.recv(header, rank, group=self._group)
            shape = shape_of(header)
        tensor = torch.empty(shape, dtype=self._dtype, device=self._device)
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
