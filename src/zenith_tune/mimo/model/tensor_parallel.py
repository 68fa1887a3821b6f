"""Layers split over the tensor-parallel group, whose result is that of the whole layer."""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from zenith_tune.errors import UsageError
from zenith_tune.mimo.logical_shard import LogicalShard


class TensorParallel:
    """The group over which a module's layers are split, this rank's place in it, and what parameters are made of."""

    def __init__(
        self,
        *,
        group: Any = None,
        size: int = 1,
        rank: int = 0,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.group, self.size, self.rank = group, size, rank
        self.device, self.dtype = device, dtype

    def all_reduce(self, tensor: Tensor, op: Any = None) -> Tensor:
        """Return the sum over the group, made in place where that is safe."""
        # An empty tensor is empty on the whole group: nobody has anything to wait for.
        if self.size > 1 and tensor.numel():
            tensor = tensor.contiguous()
            dist.all_reduce(tensor, op or dist.ReduceOp.SUM, group=self.group)
        return tensor

    def share(self, what: str, size: int) -> int:
        """Return this rank's share of a dimension."""
        if size % self.size:
            raise UsageError(f"{what} must be a multiple of tp, but got {size} and tp {self.size}: change one of them.")
        return size // self.size

    def parameter(self, *shape: int, dim: int | None = None, init: str = "normal") -> nn.Parameter:
        """Return this rank's part of a parameter of that whole shape, not yet filled."""
        shard = LogicalShard.split(shape, dim=dim, parts=self.size, index=self.rank)
        parameter = nn.Parameter(torch.empty(shard.sizes, device=self.device, dtype=self.dtype))
        parameter.shard, parameter.init = shard, init
        return parameter


class _CopyToRegion(torch.autograd.Function):
    """Pass on as it is; sum the gradients, of which every rank has its share."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, tp: TensorParallel) -> Tensor:
        """Return a view of the input."""
        ctx.tp = tp
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the sum over the group."""
        return ctx.tp.all_reduce(grad.clone()), None


class _ReduceFromRegion(torch.autograd.Function):
    """Sum the parts; every rank's gradient is already that of the sum."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, tp: TensorParallel) -> Tensor:
        """Return the sum over the group."""
        return tp.all_reduce(hidden.clone())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient as it is."""
        return grad, None


def copy_to_region(hidden: Tensor, tp: TensorParallel) -> Tensor:
    """Enter a part of the network that is split over the group."""
    return _CopyToRegion.apply(hidden, tp) if tp.size > 1 else hidden


def reduce_from_region(hidden: Tensor, tp: TensorParallel) -> Tensor:
    """Leave it again with the sum of the parts."""
    return _ReduceFromRegion.apply(hidden, tp) if tp.size > 1 else hidden


class ColumnLinear(nn.Module):
    """A linear layer whose outputs are split over the group."""

    def __init__(self, num_in: int, num_out: int, tp: TensorParallel, *, bias: bool = True) -> None:
        super().__init__()
        tp.share("the width of a layer", num_out)
        self._tp = tp
        self.weight = tp.parameter(num_out, num_in, dim=0)
        self.bias = tp.parameter(num_out, dim=0, init="zeros") if bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Return this rank's outputs."""
        return functional.linear(copy_to_region(hidden, self._tp), self.weight, self.bias)


class RowLinear(nn.Module):
    """A linear layer whose inputs are split over the group, and whose outputs are whole."""

    def __init__(self, num_in: int, num_out: int, tp: TensorParallel) -> None:
        super().__init__()
        tp.share("the width of a layer", num_in)
        self._tp = tp
        self.weight = tp.parameter(num_out, num_in, dim=1)
        self.bias = tp.parameter(num_out, init="zeros")

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the whole outputs."""
        return reduce_from_region(functional.linear(hidden, self.weight), self._tp) + self.bias


class VocabEmbedding(nn.Module):
    """An embedding whose rows are split over the group."""

    def __init__(self, vocab_size: int, width: int, tp: TensorParallel) -> None:
        super().__init__()
        self._tp = tp
        self._num_rows = tp.share("the vocabulary", vocab_size)
        self.weight = tp.parameter(vocab_size, width, dim=0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the whole vectors."""
        local, is_here = _local_ids(tokens, self._num_rows, self._tp)
        vectors = functional.embedding(local, self.weight)
        return reduce_from_region(vectors * is_here.unsqueeze(-1), self._tp)


def vocab_cross_entropy(logits: Tensor, labels: Tensor, tp: TensorParallel) -> Tensor:
    """Return the loss of every token from logits whose vocabulary is split over the group."""
    top = tp.all_reduce(logits.detach().amax(-1), dist.ReduceOp.MAX)
    shifted = logits - top.unsqueeze(-1)
    local, is_here = _local_ids(labels, logits.shape[-1], tp)
    at_label = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1) * is_here
    return reduce_from_region(shifted.exp().sum(-1), tp).log() - reduce_from_region(at_label, tp)


def _local_ids(ids: Tensor, num_rows: int, tp: TensorParallel) -> tuple[Tensor, Tensor]:
    local = ids - num_rows * tp.rank
    is_here = (local >= 0) & (local < num_rows)
    return local.clamp(0, num_rows - 1), is_here


def fill_parameters(module: nn.Module, seed: int) -> None:
    """Fill every parameter from its name and the seed alone, so that each layout begins with the same model."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.init != "normal":
                parameter.fill_(float(parameter.init == "ones"))
                continue
            generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
            whole = torch.randn(parameter.shard.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(parameter.shard.cut(whole) * parameter.shard.shape[-1] ** -0.5)
