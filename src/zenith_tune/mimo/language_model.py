"""The language model: one pipeline stage of it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from zenith_tune.errors import UsageError
from zenith_tune.mimo.model.tensor_parallel import ColumnLinear, TensorParallel, VocabEmbedding, vocab_cross_entropy
from zenith_tune.mimo.model_config import LanguageConfig
from zenith_tune.mimo.transformer import LayerNorm, StageBlocks


class MultimodalEmbedding(nn.Module):
    """Embed the text, and put the encoders' rows where their tokens stand."""

    def __init__(self, config: LanguageConfig, token_ids: Mapping[str, int], tp: TensorParallel) -> None:
        super().__init__()
        width = config.transformer.hidden_size
        self._token_ids = dict(sorted(token_ids.items()))
        self.words = VocabEmbedding(config.vocab_size, width, tp)
        self.position = tp.parameter(config.seq_length, width)

    def forward(self, tokens: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return (samples, tokens, hidden)."""
        hidden = self.words(tokens)
        for name, token_id in self._token_ids.items():
            is_item = tokens == token_id
            num_tokens, num_rows = int(is_item.sum()), rows[name].shape[0]
            if num_tokens != num_rows:
                raise UsageError(
                    f"the text must hold one token {token_id} for each row of {name}, but got {num_tokens} tokens "
                    f"and {num_rows} rows: check the samples."
                )
            hidden = hidden.masked_scatter(is_item.unsqueeze(-1), rows[name])
        return hidden + self.position[: tokens.shape[1]]


class Head(nn.Module):
    """Turn hidden vectors into the loss of every token."""

    def __init__(self, config: LanguageConfig, tp: TensorParallel) -> None:
        super().__init__()
        self._tp = tp
        self.norm = LayerNorm(config.transformer.hidden_size, tp)
        self.logits = ColumnLinear(config.transformer.hidden_size, config.vocab_size, tp, bias=False)

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Return (samples, tokens)."""
        return vocab_cross_entropy(self.logits(self.norm(hidden)), labels, self._tp)


class LanguageModel(nn.Module):
    """One pipeline stage: the first embeds, the last ends in the summed loss of the tokens that count."""

    def __init__(
        self,
        config: LanguageConfig,
        token_ids: Mapping[str, int],
        tp: TensorParallel,
        *,
        stage: int = 0,
        num_stages: int = 1,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = MultimodalEmbedding(config, token_ids, tp) if stage == 0 else None
        self.blocks = StageBlocks(
            config.transformer, tp, stage=stage, num_stages=num_stages, is_causal=True, recompute=recompute
        )
        self.head = Head(config, tp) if stage == num_stages - 1 else None

    def embed(self, tokens: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the first stage's hidden vectors."""
        assert self.embedding is not None, "only the first stage embeds"
        return self.embedding(tokens, rows)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after this stage's blocks."""
        return self.blocks(hidden)

    def loss(self, hidden: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
        """Return the last stage's loss, summed over the tokens that count."""
        assert self.head is not None, "only the last stage has a loss"
        return (self.head(hidden, labels) * loss_mask).sum()
