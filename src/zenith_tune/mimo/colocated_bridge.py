"""Rows between modules that share their ranks but not their data parallelism."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zenith_tune.mimo.grid import HyperCommGrid
from zenith_tune.mimo.module_layout import rows_of_lanes


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
