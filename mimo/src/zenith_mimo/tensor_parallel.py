"""Layers split over the tensor-parallel group, whose result is that of the whole layer."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from zenith_mimo.gradients import full_precision
from zenith_mimo.planning.config import TransformerConfig
from zenith_mimo.planning.work import stage_layers
from zenith_tune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalShard:
    """A box of a tensor: where it begins and how large it is, in the coordinates of the whole.

    >>> LogicalShard.split((8, 4), dim=0, parts=2, index=1)
    LogicalShard(shape=(8, 4), offsets=(4, 0), sizes=(4, 4))
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @classmethod
    def split(cls, shape: tuple[int, ...], *, dim: int | None, parts: int, index: int) -> LogicalShard:
        """Return part `index` of equal `parts` along `dim`; without `dim` the whole."""
        offsets, sizes = [0] * len(shape), list(shape)
        if dim is not None:
            sizes[dim] = shape[dim] // parts
            offsets[dim] = sizes[dim] * index
        return cls(shape=shape, offsets=tuple(offsets), sizes=tuple(sizes))

    @property
    def is_whole(self) -> bool:
        """Whether every rank of the tensor-parallel group holds the same, the whole."""
        return self.sizes == self.shape

    def rows(self, start: int, stop: int) -> LogicalShard:
        """Return the part between two rows, counted from the beginning of this one."""
        return LogicalShard(
            shape=self.shape,
            offsets=(self.offsets[0] + start, *self.offsets[1:]),
            sizes=(stop - start, *self.sizes[1:]),
        )

    def cut(self, whole: Any) -> Any:
        """Return this box of the whole tensor."""
        return whole[tuple(slice(o, o + n) for o, n in zip(self.offsets, self.sizes, strict=True))]


def shard_of(tensor: Tensor) -> LogicalShard:
    """Return the box that a parameter or buffer says it is, else the whole."""
    whole = LogicalShard.split(tuple(tensor.shape), dim=None, parts=1, index=0)
    return getattr(tensor, "shard", whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParallel:
    """The group over which layers are split, this rank's place in it, and the device and type of parameters."""

    group: Any = None
    size: int = 1
    rank: int = 0
    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    def all_reduce(self, tensor: Tensor, op: Any = None) -> Tensor:
        """Return the sum over the group, made in place where that is safe."""
        # An empty tensor is empty on the whole group: there is nothing to wait for.
        if self.size > 1 and tensor.numel():
            tensor = tensor.contiguous()
            dist.all_reduce(tensor, op or dist.ReduceOp.SUM, group=self.group)
        return tensor

    def share(self, what: str, size: int) -> int:
        """Return this rank's share of a dimension."""
        if size % self.size:
            raise UsageError(
                f"{what} must be a multiple of tp, but got {size} and tp {self.size}", hint="change one of them."
            )
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

    def __init__(self, num_in: int, num_out: int, tp: TensorParallel, *, bias: bool = True) -> None:
        super().__init__()
        tp.share("the width of a layer", num_in)
        self._tp = tp
        self.weight = tp.parameter(num_out, num_in, dim=1)
        self.bias = tp.parameter(num_out, init="zeros") if bias else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the whole outputs."""
        whole = reduce_from_region(functional.linear(hidden, self.weight), self._tp)
        return whole if self.bias is None else whole + self.bias


class VocabEmbedding(nn.Module):
    """An embedding whose rows are split over the group."""

    def __init__(self, vocab_size: int, width: int, tp: TensorParallel, *, padding: int | None = None) -> None:
        """Leave the row of `padding` without a gradient."""
        super().__init__()
        self._tp, self._padding = tp, padding
        self._num_rows = tp.share("the vocabulary", vocab_size)
        self.weight = tp.parameter(vocab_size, width, dim=0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the whole vectors."""
        local, is_here = _local_ids(tokens, self._num_rows, self._tp)
        vectors = functional.embedding(local, self.weight)
        if self._padding is not None:
            vectors = torch.where((tokens == self._padding).unsqueeze(-1), vectors.detach(), vectors)
        return reduce_from_region(vectors * is_here.unsqueeze(-1), self._tp)


def vocab_cross_entropy(logits: Tensor, labels: Tensor, tp: TensorParallel) -> Tensor:
    """Return the loss of every token, in single precision or better, from logits split over the group."""
    logits = logits.to(full_precision(logits.dtype))
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


class LayerNorm(nn.Module):
    """A layer norm that every rank of the tensor-parallel group holds whole."""

    def __init__(self, width: int, tp: TensorParallel) -> None:
        super().__init__()
        self.weight = tp.parameter(width, init="ones")
        self.bias = tp.parameter(width, init="zeros")

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the normed vectors."""
        return functional.layer_norm(hidden, self.weight.shape, self.weight, self.bias)


class Attention(nn.Module):
    """Self-attention whose heads are split over the tensor-parallel group."""

    def __init__(self, config: TransformerConfig, tp: TensorParallel, *, is_causal: bool) -> None:
        super().__init__()
        self._num_heads = tp.share("the number of heads", config.num_heads)
        self._is_causal = is_causal
        # The rows stand head by head, each with its q, k and v, so that a rank's heads are one box of the whole.
        self.qkv = ColumnLinear(config.hidden_size, 3 * config.hidden_size, tp, bias=False)
        self.out = RowLinear(config.hidden_size, config.hidden_size, tp)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return what the heads see."""
        batch, length, _ = hidden.shape
        qkv = self.qkv(hidden)
        heads = qkv.view(batch, length, self._num_heads, 3, qkv.shape[-1] // (3 * self._num_heads))
        q, k, v = heads.transpose(1, 2).unbind(3)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=self._is_causal)
        return self.out(seen.transpose(1, 2).reshape(batch, length, qkv.shape[-1] // 3))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each after a norm and around a residual."""

    def __init__(self, config: TransformerConfig, tp: TensorParallel, *, is_causal: bool) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(config.hidden_size, tp)
        self.attention = Attention(config, tp, is_causal=is_causal)
        self.ffn_norm = LayerNorm(config.hidden_size, tp)
        self.ffn_in = ColumnLinear(config.hidden_size, config.ffn_size, tp)
        self.ffn_out = RowLinear(config.ffn_size, config.hidden_size, tp)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after this block."""
        hidden = hidden + self.attention(self.attention_norm(hidden))
        return hidden + self.ffn_out(functional.gelu(self.ffn_in(self.ffn_norm(hidden))))


class StageBlocks(nn.ModuleDict):
    """The blocks of one pipeline stage, under the numbers that they have in the whole model."""

    def __init__(
        self,
        config: TransformerConfig,
        tp: TensorParallel,
        *,
        stage: int,
        num_stages: int,
        is_causal: bool,
        recompute: bool,
    ) -> None:
        layers = stage_layers(config.num_layers, stage, num_stages)
        super().__init__({str(layer): Block(config, tp, is_causal=is_causal) for layer in layers})
        self._recompute = recompute

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after these blocks."""
        for block in self.values():
            hidden = checkpoint(block, hidden, use_reentrant=False) if self._recompute else block(hidden)
        return hidden
