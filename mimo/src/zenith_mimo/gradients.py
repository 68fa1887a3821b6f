"""Gradients of one module: added up in full precision, and summed over its replicas while backward still runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

LOW_PRECISION = (torch.bfloat16, torch.float16)


def full_precision(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which gradients, weights and moments are kept for parameters of this one."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


def owned_rows(num_rows: int, index: int, num_owners: int) -> tuple[int, int]:
    """Return the rows of an owner, as even as they go.

    >>> [owned_rows(10, index, 4) for index in range(4)]
    [(0, 2), (2, 5), (5, 7), (7, 10)]
    """
    return num_rows * index // num_owners, num_rows * (index + 1) // num_owners


class _Bucket:
    """Some parameters' gradients in one buffer, which is summed over the replicas at once."""

    def __init__(self, parameters: list[nn.Parameter], num_owners: int) -> None:
        self.parameters = parameters
        self._num_owners = num_owners
        first = parameters[0]
        dtype = full_precision(first.dtype)
        self.flat = torch.zeros(sum(p.numel() for p in parameters), dtype=dtype, device=first.device)
        pieces = self.flat.split([p.numel() for p in parameters])
        self.grads = {p: piece.view_as(p) for p, piece in zip(parameters, pieces, strict=True)}
        self.awaited: set[nn.Parameter] = set()
        self._work: Any = None
        self._kept: Tensor | None = None
        """The buffer that the backend reads from while it sends."""
        self.owned: Tensor | None = None

    def clear(self) -> None:
        self.flat.zero_()
        self.awaited, self.owned = set(self.parameters), None
        for parameter, grad in self.grads.items():
            # Of the same type, backward adds to the buffer itself.
            parameter.grad = grad if parameter.dtype == grad.dtype else None

    def start_sum(self, group: Any) -> None:
        """Start to sum over the replicas; where their optimizer is sharded each gets the rows that it owns."""
        if self._num_owners == 1:
            self._work = dist.all_reduce(self.flat, group=group, async_op=True)
            return
        by_owner = [torch.cat(self._rows_of(owner)) for owner in range(self._num_owners)]
        longest = max(part.numel() for part in by_owner)
        # Every owner must get as much.
        packed = self.flat.new_zeros(self._num_owners, longest)
        for row, part in zip(packed, by_owner, strict=True):
            row[: part.numel()] = part
        self._kept, self.owned = packed, self.flat.new_empty(longest)
        # torch 2.13 renamed it.
        reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        self._work = reduce_scatter(self.owned, packed.view(-1), group=group, async_op=True)

    def finish(self, scale: float) -> None:
        if self._work is not None:
            self._work.wait()
        self._work = self._kept = None
        (self.flat if self.owned is None else self.owned).mul_(scale)

    def grad_rows(self, parameter: nn.Parameter, owner: int) -> Tensor:
        """Return the summed gradient of the rows that this rank owns."""
        start, stop = owned_rows(parameter.shape[0], owner, self._num_owners)
        if self.owned is None:
            return self.grads[parameter][start:stop]
        offset = 0
        for other in self.parameters:
            begin, end = owned_rows(other.shape[0], owner, self._num_owners)
            size = (end - begin) * (other.numel() // other.shape[0])
            if other is parameter:
                return self.owned[offset : offset + size].view(stop - start, *parameter.shape[1:])
            offset += size
        raise KeyError("the parameter is not in this bucket")

    def _rows_of(self, owner: int) -> list[Tensor]:
        spans = [owned_rows(p.shape[0], owner, self._num_owners) for p in self.parameters]
        return [grad[begin:end].reshape(-1) for grad, (begin, end) in zip(self.grads.values(), spans, strict=True)]


class ModuleGradients:
    """The summed gradients of a module's micro-batches, summed over its replicas bucket by bucket.

    Backward fills the buckets from the end of the module. In the last micro-batch's backward pass each is sent as soon
    as it is full, in one order on all replicas, while backward continues with the next.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], group: Any, *, dp: int, num_owners: int, bucket: int
    ) -> None:
        self._group, self._dp = group, dp
        self._is_last = False
        self._num_started = 0
        self.num_overlapped = 0
        """The buckets that the last step's backward pass sent before it ended."""
        self.buckets = [_Bucket(part, num_owners) for part in _parts(reversed(list(parameters)), bucket)]
        self._bucket_of = {p: bucket for bucket in self.buckets for p in bucket.parameters}
        for parameter in self._bucket_of:
            parameter.register_post_accumulate_grad_hook(self._arrived)
        self.clear()

    def clear(self) -> None:
        """Begin a step."""
        self._is_last, self._num_started = False, 0
        for bucket in self.buckets:
            bucket.clear()

    def begin_last_backward(self) -> None:
        """Send each bucket from now on as soon as it is full."""
        self._is_last = True

    def finish(self, scale: float) -> None:
        """Wait for all sums, and scale them."""
        self.num_overlapped = self._num_started
        if self._dp > 1:
            while self._num_started < len(self.buckets):
                self._start_next()
        for bucket in self.buckets:
            bucket.finish(scale)

    def grad_rows(self, parameter: nn.Parameter, owner: int) -> Tensor:
        """Return the gradient of the rows that an owner, this rank, updates."""
        return self._bucket_of[parameter].grad_rows(parameter, owner)

    def _arrived(self, parameter: nn.Parameter) -> None:
        bucket = self._bucket_of[parameter]
        grad = bucket.grads[parameter]
        if parameter.dtype != grad.dtype:
            grad.add_(parameter.grad)
            parameter.grad = None
        if self._is_last and self._dp > 1:
            bucket.awaited.discard(parameter)
            while self._num_started < len(self.buckets) and not self.buckets[self._num_started].awaited:
                self._start_next()

    def _start_next(self) -> None:
        self.buckets[self._num_started].start_sum(self._group)
        self._num_started += 1


def _parts(parameters: Iterable[nn.Parameter], most: int) -> list[list[nn.Parameter]]:
    """Return the parameters in groups of one type with up to so many numbers."""
    parts: list[list[nn.Parameter]] = []
    for parameter in parameters:
        size = sum(p.numel() for p in parts[-1]) if parts else 0
        if parts and parts[-1][0].dtype == parameter.dtype and size + parameter.numel() <= most:
            parts[-1].append(parameter)
        else:
            parts.append([parameter])
    return parts
