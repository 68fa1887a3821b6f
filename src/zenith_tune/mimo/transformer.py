"""The transformer blocks of one pipeline stage."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from zenith_tune.mimo.model.tensor_parallel import ColumnLinear, RowLinear, TensorParallel
from zenith_tune.mimo.model_config import TransformerConfig
from zenith_tune.mimo.stage_layers import stage_layers


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
