"""Stages of vision towers: CLIP's and SigLIP's with a projector of their own, and Qwen2-VL's with its merger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from zenith_mimo.hugging_face.folder import (
    QWEN_TOWER,
    TOWER,
    check_kind,
    fill_from_folder,
    last_hidden,
    on_meta,
    read_config,
    read_projector,
    recompute_layers,
)
from zenith_mimo.hugging_face.split import SQUARE_PLAN, split_layers
from zenith_mimo.planning.work import stage_layers
from zenith_mimo.samples import MicroBatch
from zenith_mimo.tensor_parallel import TensorParallel, shard_of
from zenith_tune.errors import UsageError

KINDS = ("clip_vision_model", "siglip_vision_model")
QWEN_KINDS = ("qwen2_vl_vision", "qwen2_vl")


class VisionStage(nn.Module):
    """A stage of CLIP's or SigLIP's vision tower; the last one projects its vectors for the language model.

    Items are images, (images, channels, height, width). Without `layer` the rows come from the tower's
    `last_hidden_state`; with it from `hidden_states[layer]`, as LLaVA takes them (-2). CLIP's class token is dropped
    unless `keep_class`. The projector is one layer, or LLaVA's two (`projector_layers`); it is read from the folder of
    a LLaVA, else made from `seed`.
    """

    def __init__(
        self,
        folder: Path,
        tp: TensorParallel,
        stage: int,
        num_stages: int,
        *,
        width: int,
        seed: int,
        layer: int | None = None,
        keep_class: bool = False,
        projector_layers: int = 1,
        recompute: bool = False,
    ) -> None:
        super().__init__()
        import transformers

        config = read_config(folder, "vision_config")
        kind = check_kind(folder, "a vision tower", config, KINDS)
        tp.share(f"num_attention_heads of {folder}", config.num_attention_heads)
        model = on_meta(transformers.AutoModel.from_config, config)
        tower = getattr(model, "vision_model", model)
        num_layers = _num_layers(config.num_hidden_layers, layer)
        layers = stage_layers(num_layers, stage, num_stages)
        is_first, is_last = stage == 0, stage == num_stages - 1
        # CLIP's class token stands before the patches, and its first norm has this name.
        self._num_class = 1 if hasattr(tower.embeddings, "class_embedding") else 0
        self._num_dropped = 0 if keep_class else self._num_class
        self._num_patches, self._width = (config.image_size // config.patch_size) ** 2, config.hidden_size
        # Made again, because their tables of positions are no weights and would stay without values.
        self.embeddings = type(tower.embeddings)(config) if is_first else None
        self.pre_layrnorm = getattr(tower, "pre_layrnorm", None) if is_first else None
        self.layers = nn.ModuleDict({str(number): tower.encoder.layers[number] for number in layers})
        split_layers(self.layers.values(), SQUARE_PLAN, tp)
        # CLIP norms the class token alone, for its pooled output.
        has_norm = is_last and layer is None and kind == "siglip_vision_model"
        self.post_layernorm = tower.post_layernorm if has_norm else None
        if recompute:
            recompute_layers(model)
        fill_from_folder(self, folder, TOWER, tp)
        self.projector = _projector(folder, config.hidden_size, width, projector_layers, seed) if is_last else None
        self.to(tp.device, tp.dtype)

    def embed(self, items: Tensor) -> Tensor:
        """Return the hidden vectors of images."""
        assert self.embeddings is not None, "only the first stage embeds"
        if not len(items):
            return items.new_empty(0, self._num_patches + self._num_class, self._width)
        hidden: Tensor = self.embeddings(items)
        return hidden if self.pre_layrnorm is None else self.pre_layrnorm(hidden)

    def blocks(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after this stage's layers."""
        for layer in self.layers.values() if len(hidden) else ():
            hidden = last_hidden(layer(hidden, None))
        return hidden

    def rows(self, hidden: Tensor) -> Tensor:
        """Return one row per patch, and per class token that is kept."""
        assert self.projector is not None, "only the last stage has rows"
        hidden = hidden if self.post_layernorm is None else self.post_layernorm(hidden)
        rows: Tensor = self.projector(hidden[:, self._num_dropped :])
        return rows.flatten(0, 1)

    def hidden_shape(self, batch: MicroBatch, rows_per_sample: list[int]) -> tuple[int, ...]:
        """Return the shape of what comes from the stage before."""
        num_tokens = self._num_patches + self._num_class
        return sum(rows_per_sample) // (num_tokens - self._num_dropped), num_tokens, self._width


def _num_layers(num_layers: int, layer: int | None) -> int:
    """Return after how many layers the rows are taken; `hidden_states` begins with what the embeddings give."""
    found = num_layers if layer is None else layer if layer >= 0 else num_layers + 1 + layer
    if not 1 <= found <= num_layers:
        least, most = -num_layers, num_layers
        raise UsageError(f"layer must be {least} to -1 or 1 to {most}, but got {layer}", hint="LLaVA takes -2.")
    return found


def _projector(folder: Path, width: int, language_width: int, num_layers: int, seed: int) -> nn.Module:
    if num_layers not in (1, 2):
        raise UsageError(f"projector_layers must be 1 or 2, but got {num_layers}: correct it.")
    if num_layers == 1:
        projector: nn.Module = nn.Linear(width, language_width)
    else:
        projector = nn.Sequential()
        projector.add_module("linear_1", nn.Linear(width, language_width))
        projector.add_module("act", nn.GELU())
        projector.add_module("linear_2", nn.Linear(language_width, language_width))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in projector.named_parameters():
            weight = read_projector(folder, f"projector.{name}")
            if weight is not None and weight.shape == parameter.shape:
                parameter.copy_(weight)
            elif parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5, generator=generator)
            else:
                parameter.zero_()
            parameter.shard = shard_of(parameter)
    return projector


class QwenVisionStage(nn.Module):
    """A stage of Qwen2-VL's vision tower, whose merger makes rows of the language model's width.

    Items are patches, (patches, numbers in a patch), of images of any size; `side` has their `grid_thw`, (images, 3).
    """

    def __init__(
        self, folder: Path, tp: TensorParallel, stage: int, num_stages: int, *, width: int, recompute: bool = False
    ) -> None:
        super().__init__()
        from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VisionTransformerPretrainedModel

        config = read_config(folder, "vision_config")
        check_kind(folder, "a tower of Qwen2-VL", config, QWEN_KINDS)
        if tp.size > 1:
            problem = "Qwen2-VL's tower is not split by tensor parallelism, since its queries, keys and values are one"
            raise UsageError(f"{problem} matrix, but tp is {tp.size}", hint="set it to 1.")
        if config.hidden_size != width:
            problem = (
                f"the rows of Qwen2-VL's tower have {config.hidden_size} numbers, but the language model's {width}"
            )
            raise UsageError(problem, hint="give a language model of that width.")
        tower = on_meta(Qwen2VisionTransformerPretrainedModel._from_config, config)
        layers = stage_layers(config.depth, stage, num_stages)
        self._width, self._num_merged = config.embed_dim, config.spatial_merge_size**2
        self._row_width = width
        self.patch_embed = tower.patch_embed if stage == 0 else None
        self.layers = nn.ModuleDict({str(number): tower.blocks[number] for number in layers})
        self.merger = tower.merger if stage == num_stages - 1 else None
        if recompute:
            recompute_layers(tower)
        fill_from_folder(self, folder, QWEN_TOWER, tp)
        tower.blocks = nn.ModuleList(self.layers.values())
        tower.patch_embed, tower.merger = nn.Identity(), nn.Identity()
        tower.rotary_pos_emb = type(tower.rotary_pos_emb)(config).to(tp.device)
        self._tower = [tower]  # in a list, or its layers would be this stage's under a second name
        self.to(tp.device, tp.dtype)

    def embed(self, items: Tensor) -> Tensor:
        """Return the hidden vectors of patches."""
        assert self.patch_embed is not None, "only the first stage embeds"
        if not len(items):
            return items.new_empty(0, self._width)
        hidden: Tensor = self.patch_embed(items)
        return hidden

    def blocks(self, hidden: Tensor, side: Mapping[str, Tensor]) -> Tensor:
        """Return the hidden vectors after this stage's layers."""
        return last_hidden(self._tower[0](hidden, grid_thw=side["grid_thw"])) if len(hidden) else hidden

    def rows(self, hidden: Tensor) -> Tensor:
        """Return one row for each square of patches."""
        assert self.merger is not None, "only the last stage has rows"
        if not len(hidden):
            return hidden.new_empty(0, self._row_width)
        rows: Tensor = self.merger(hidden)
        return rows

    def hidden_shape(self, batch: MicroBatch, rows_per_sample: list[int]) -> tuple[int, ...]:
        """Return the shape of what comes from the stage before."""
        return sum(rows_per_sample) * self._num_merged, self._width
