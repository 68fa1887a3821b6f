"""An encoder of images or other items: one pipeline stage of it."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from zenith_tune.mimo.model.tensor_parallel import ColumnLinear, RowLinear, TensorParallel
from zenith_tune.mimo.model_config import EncoderConfig
from zenith_tune.mimo.transformer import LayerNorm, StageBlocks


class PatchEmbedding(nn.Module):
    """Turn patches into hidden vectors, each with its position in the item."""

    def __init__(self, config: EncoderConfig, tp: TensorParallel) -> None:
        super().__init__()
        width = config.transformer.hidden_size
        self.weight = tp.parameter(width, config.patch_size)
        self.bias = tp.parameter(width, init="zeros")
        self.position = tp.parameter(config.patches_per_item, width)

    def forward(self, patches: Tensor) -> Tensor:
        """Return (items, patches, hidden)."""
        return functional.linear(patches, self.weight, self.bias) + self.position


class Projector(nn.Module):
    """Carry the encoder's vectors into the language model's space."""

    def __init__(self, width: int, language_width: int, tp: TensorParallel) -> None:
        super().__init__()
        self.norm = LayerNorm(width, tp)
        self.rise = ColumnLinear(width, language_width, tp)
        self.out = RowLinear(language_width, language_width, tp)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return one row per patch."""
        projected = self.out(functional.gelu(self.rise(self.norm(hidden))))
        return projected.reshape(-1, projected.shape[-1])


class ItemEncoder(nn.Module):
    """One pipeline stage of an encoder: the first embeds the patches, the last projects them."""

    def __init__(
        self,
        config: EncoderConfig,
        language_width: int,
        tp: TensorParallel,
        *,
        stage: int = 0,
        num_stages: int = 1,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = PatchEmbedding(config, tp) if stage == 0 else None
        self.blocks = StageBlocks(
            config.transformer, tp, stage=stage, num_stages=num_stages, is_causal=False, recompute=recompute
        )
        is_last = stage == num_stages - 1
        self.projector = Projector(config.transformer.hidden_size, language_width, tp) if is_last else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Take patches or the stage before, return the stage's hidden vectors or one row per patch."""
        if self.embedding is not None:
            hidden = self.embedding(hidden)
        hidden = self.blocks(hidden)
        return hidden if self.projector is None else self.projector(hidden)
