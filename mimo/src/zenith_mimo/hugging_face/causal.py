"""Stages of causal language models, run by transformers' own forward pass over the layers of a stage."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn
from torch.nn import functional

from zenith_mimo.gradients import full_precision
from zenith_mimo.hugging_face.folder import (
    CAUSAL,
    check_kind,
    fill_from_folder,
    last_hidden,
    on_meta,
    read_config,
    recompute_layers,
)
from zenith_mimo.hugging_face.split import layer_plan, split_layers
from zenith_mimo.modules import tie_to_other_end, with_rows
from zenith_mimo.planning.work import stage_layers
from zenith_mimo.samples import MicroBatch
from zenith_mimo.tensor_parallel import TensorParallel, VocabEmbedding, copy_to_region, vocab_cross_entropy

KINDS = ("llama", "qwen2", "qwen3", "mistral", "qwen2_vl_text")
"""Models whose forward pass is embedding, layers and norm, and nothing else."""


TIED = "tie_word_embeddings"


class CausalStage(nn.Module):
    """A stage of a causal language model: Llama, Qwen2, Qwen3, Mistral, or that of Qwen2-VL.

    `side` may have `position_ids` (several texts packed into one sample begin at 0 again) and `attention_mask`, as
    transformers has them. Those of Qwen2-VL come from `image_positions`.
    """

    def __init__(
        self,
        folder: Path,
        token_ids: Mapping[str, int],
        tp: TensorParallel,
        stage: int,
        num_stages: int,
        *,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        import transformers

        config = read_config(folder, "text_config")
        check_kind(folder, "a language model", config, KINDS)
        for heads in ("num_attention_heads", "num_key_value_heads"):
            tp.share(f"{heads} of {folder}", getattr(config, heads))
        # A whole model says it, where its language model alone cannot.
        is_tied = bool(getattr(config, TIED, None) or getattr(read_config(folder), TIED, False))
        layers = stage_layers(config.num_hidden_layers, stage, num_stages)
        inner, is_last = on_meta(transformers.AutoModel.from_config, config), stage == num_stages - 1
        self._tp, self._token_ids, self._width = tp, dict(sorted(token_ids.items())), config.hidden_size
        self.vocab_size: int = config.vocab_size
        words = inner.embed_tokens
        if tp.size > 1:
            words = VocabEmbedding(config.vocab_size, config.hidden_size, tp, padding=words.padding_idx)
        self.embed_tokens = words if stage == 0 or (is_last and is_tied) else None
        self.layers = nn.ModuleDict({str(layer): inner.layers[layer] for layer in layers})
        self.norm = inner.norm if is_last else None
        self.lm_head = nn.Linear(1, 1, bias=False) if is_last and not is_tied else None
        if self.lm_head is not None:
            self.lm_head.weight = tp.parameter(config.vocab_size, config.hidden_size, dim=0)
        split_layers(self.layers.values(), layer_plan(config), tp)
        if recompute:
            recompute_layers(inner)
        fill_from_folder(self, folder, CAUSAL, tp)
        if is_tied and num_stages > 1 and self.embed_tokens is not None:
            tie_to_other_end(self.embed_tokens.weight)
        # What is left runs these layers alone: with the masks and positions that transformers makes for them.
        inner.config = copy.deepcopy(config)
        inner.config.num_hidden_layers = len(layers)
        if getattr(config, "layer_types", None):
            inner.config.layer_types = [config.layer_types[layer] for layer in layers]
        inner.layers, inner.norm, inner.embed_tokens = nn.ModuleList(self.layers.values()), nn.Identity(), None
        # Made again, because on the meta device they have no values.
        inner.rotary_emb = type(inner.rotary_emb)(config).to(tp.device)
        self._inner = [inner]  # in a list, or its layers would be this stage's under a second name
        self.to(tp.device, tp.dtype)

    def embed(self, tokens: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the text's vectors with the encoders' rows at their tokens."""
        assert self.embed_tokens is not None, "only the first stage embeds"
        hidden = self.embed_tokens(tokens.to(self.embed_tokens.weight.device))
        return with_rows(hidden, tokens, rows, self._token_ids)

    def blocks(self, hidden: Tensor, side: Mapping[str, Tensor]) -> Tensor:
        """Return the hidden vectors after this stage's layers."""
        inputs = dict(side)
        if (positions := side.get("position_ids")) is not None and positions.dim() == 3:
            inputs["position_ids"] = positions.transpose(0, 1)  # transformers has the samples second
        return last_hidden(self._inner[0](inputs_embeds=hidden, use_cache=False, **inputs))

    def loss(self, hidden: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
        """Return the loss summed over the tokens that count."""
        assert self.norm is not None, "only the last stage has a loss"
        head = self.embed_tokens if self.lm_head is None else self.lm_head
        assert head is not None
        logits = functional.linear(copy_to_region(self.norm(hidden), self._tp), head.weight)
        if self._tp.size > 1:
            return (vocab_cross_entropy(logits, labels, self._tp) * loss_mask).sum()
        logits = logits.to(full_precision(logits.dtype)).flatten(0, 1)
        return (functional.cross_entropy(logits, labels.flatten(), reduction="none") * loss_mask.flatten()).sum()

    def hidden_shape(self, batch: MicroBatch, rows_per_sample: list[int]) -> tuple[int, ...]:
        """Return the shape of what comes from the stage before."""
        return *batch.tokens.shape, self._width
