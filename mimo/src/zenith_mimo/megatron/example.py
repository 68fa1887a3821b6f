"""The example's model in Megatron's layers, with the weights that the runtime here gives it."""

from __future__ import annotations

import copy
import functools
import re
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.vision.multimodal_projector import MultimodalProjector
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer import TransformerConfig as MegatronConfig
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlock
from torch import Tensor, nn

from zenith_mimo.megatron.model import TOWER, BuildSpec, MegatronModel, StagedEncoder, StagePlace
from zenith_mimo.megatron.support import MegatronSupport, check_stages
from zenith_mimo.megatron.topology import MegatronTopology
from zenith_mimo.modules import PatchEmbedding, build_module
from zenith_mimo.planning.config import LANGUAGE, EncoderConfig, MimoConfig, TransformerConfig
from zenith_mimo.tensor_parallel import TensorParallel, vocab_cross_entropy

BLOCK_NAMES = {
    "attention_norm": "input_layernorm",
    "attention.qkv": "self_attention.linear_qkv",
    "attention.out": "self_attention.linear_proj",
    "ffn_norm": "pre_mlp_layernorm",
    "ffn_in": "mlp.linear_fc1",
    "ffn_out": "mlp.linear_fc2",
}
NAMES = {
    LANGUAGE: {
        "embedding.words": "embedding.word_embeddings",
        "embedding.position": "position",
        "blocks": "decoder.layers",
        "head.norm": "decoder.final_layernorm",
        "head.logits": "output_layer",
    },
    TOWER: {
        "embedding": f"encoders.{TOWER}.embedding",
        "blocks": f"encoders.{TOWER}.blocks.layers",
        "projector.norm": f"encoders.{TOWER}.blocks.final_layernorm",
        "projector.rise": "input_projections.0.encoder.linear_fc1",
        "projector.out": "input_projections.0.encoder.linear_fc2",
    },
}
"""Where Megatron's modules have what is under these names here."""


class PatchTower(MegatronModule):
    """One stage of an encoder of patches, in Megatron's blocks."""

    def __init__(self, config: MegatronConfig, encoder: EncoderConfig, place: StagePlace, dtype: torch.dtype) -> None:
        super().__init__(config=config)
        self.embedding = PatchEmbedding(encoder, TensorParallel(dtype=dtype)) if place.is_first else None
        self.blocks = TransformerBlock(
            config=config,
            spec=_layer_spec(AttnMaskType.no_mask),
            pre_process=place.is_first,
            post_process=place.is_last,
            pg_collection=place.groups,
        )
        self._is_last = place.is_last

    def forward(self, items: Tensor | None = None, hidden_states: Tensor | None = None) -> Tensor:
        """Return (patches, items, hidden), and from the last stage one row per patch, item after item."""
        if self.embedding is not None:
            hidden_states = self.embedding(items).transpose(0, 1).contiguous()
        assert hidden_states is not None, "later stages take hidden vectors"
        self.blocks.set_input_tensor(hidden_states)
        # Megatron's attention cannot tell the shape of nothing.
        is_empty = hidden_states.numel() == 0
        hidden = hidden_states if is_empty else self.blocks(hidden_states=hidden_states, attention_mask=None)
        return hidden.transpose(0, 1).reshape(-1, hidden.shape[-1]) if self._is_last else hidden


class PositionedGPT(GPTModel):
    """Megatron's GPT with a vector for every position of the text, also where items stand in it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.pre_process:
            self.position = nn.Parameter(torch.empty(self.max_sequence_length, self.config.hidden_size))

    def forward(self, *args: Any, decoder_input: Tensor | None = None, **options: Any) -> Tensor:
        """Return the hidden vectors, or the loss of every token."""
        if decoder_input is not None:
            decoder_input = decoder_input + self.position[: decoder_input.shape[0]].unsqueeze(1)
        output: Tensor = super().forward(*args, decoder_input=decoder_input, **options)
        return output

    def compute_language_model_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Return (samples, tokens).

        Of Megatron's own two, the fused one rounds gradients to bfloat16, and in 0.17 the other knows no groups but
        those of the whole world.
        """
        group = self.pg_collection.tp
        tp = TensorParallel(group=group, size=group.size(), rank=group.rank())
        return vocab_cross_entropy(logits, labels.transpose(0, 1), tp).transpose(0, 1)


def example_model(
    config: MimoConfig, topology: MegatronTopology, support: MegatronSupport, *, dtype: torch.dtype = torch.float32
) -> MegatronModel:
    """Return Megatron's model of the example's configuration, with the weights that its seed gives everywhere."""
    check_stages(config, topology.layout)
    specs: dict[str, BuildSpec] = {
        **{name: functools.partial(_encoder_spec, config, name, dtype) for name in config.encoders},
        LANGUAGE: functools.partial(_language_spec, config, dtype),
    }
    token_ids = {name: encoder.token_id for name, encoder in config.encoders.items()}
    model = MegatronModel(specs, topology, support, token_ids=token_ids, dtype=dtype, seed=config.seed)
    for name, part in model.parts.items():
        _fill(part, config, name, topology)
    return model


def megatron_names(config: MimoConfig, name: str, topology: MegatronTopology) -> dict[str, tuple[str, nn.Parameter]]:
    """Return what Megatron calls each parameter of this rank's stage of a module, and the runtime's parameter.

    Keys are the runtime's names; its parameters have the values to begin with, and say where they are in the whole.
    """
    layout, groups = topology.layout.modules[name], topology.groups[name]
    tp = TensorParallel(size=layout.tp, rank=groups.tp.rank())
    stage = build_module(config, name, tp, stage=topology.stage(name), num_stages=layout.pp)
    here, names = dict(stage.named_parameters()), NAMES[LANGUAGE if name == LANGUAGE else TOWER]
    first = next(int(match[1]) for match in map(_BLOCK.match, here) if match)
    return {own: (_megatron_name(own, names, first), parameter) for own, parameter in here.items()}


_BLOCK = re.compile(r"blocks\.([0-9]+)\.(.+)\.(weight|bias)$")


def _megatron_name(own: str, names: dict[str, str], first_layer: int) -> str:
    if (block := _BLOCK.match(own)) is not None:
        return f"{names['blocks']}.{int(block[1]) - first_layer}.{BLOCK_NAMES[block[2]]}.{block[3]}"
    return next(own.replace(here, there, 1) for here, there in names.items() if own.startswith(here))


def _fill(part: nn.Module, config: MimoConfig, name: str, topology: MegatronTopology) -> None:
    """Give Megatron's parameters the values of ours; what it has beyond them is a bias of q, k and v, kept at 0."""
    theirs = dict(part.named_parameters())
    with torch.no_grad():
        for there, own in megatron_names(config, name, topology).values():
            theirs.pop(there).copy_(own).requires_grad_(own.requires_grad)
        for parameter in theirs.values():
            parameter.zero_().requires_grad_(False)


def _layer_spec(mask: AttnMaskType) -> ModuleSpec:
    spec = copy.deepcopy(get_gpt_layer_local_spec())
    spec.submodules.self_attention.params["attn_mask_type"] = mask
    return spec


def _transformer(config: TransformerConfig, place: StagePlace, dtype: torch.dtype, *, recompute: bool) -> Any:
    """Return Megatron's configuration of a module's blocks."""
    whole = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return MegatronConfig(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        ffn_hidden_size=config.ffn_size,
        num_attention_heads=config.num_heads,
        tensor_model_parallel_size=place.tp,
        pipeline_model_parallel_size=place.num_stages,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        attention_softmax_in_fp32=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",
        # Losses are summed, and gradients divided by the tokens of the global batch.
        calculate_per_token_loss=True,
        gradient_accumulation_fusion=False,
        **(whole if recompute else {}),
    )


def _language_spec(config: MimoConfig, dtype: torch.dtype, place: StagePlace) -> ModuleSpec:
    language = config.language
    return ModuleSpec(
        module=PositionedGPT,
        params={
            "config": _transformer(language.transformer, place, dtype, recompute=LANGUAGE in config.recompute),
            "transformer_layer_spec": _layer_spec(AttnMaskType.causal),
            "vocab_size": language.vocab_size,
            "max_sequence_length": language.seq_length,
            "position_embedding_type": "none",
            "pre_process": place.is_first,
            "post_process": place.is_last,
            "pg_collection": place.groups,
        },
    )


def _encoder_spec(config: MimoConfig, name: str, dtype: torch.dtype, place: StagePlace) -> ModuleSpec:
    encoder, width = config.encoders[name], config.language.transformer.hidden_size
    blocks = _transformer(encoder.transformer, place, dtype, recompute=name in config.recompute)
    tower = {"config": blocks, "encoder": encoder, "place": place, "dtype": dtype}
    out = TransformerConfig(num_layers=1, hidden_size=width, num_heads=place.tp, ffn_size=width)
    projector = {
        "config": _transformer(
            out, StagePlace(groups=None, tp=place.tp, stage=0, num_stages=1), dtype, recompute=False
        ),
        "submodules": MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear),
        "projector_type": "mlp",
        "input_size": encoder.transformer.hidden_size,
        "tp_group": None if place.groups is None else place.groups.tp,
    }
    return ModuleSpec(
        module=StagedEncoder,
        params={"pg_collection": place.groups},
        submodules={
            "encoders": {TOWER: ModuleSpec(module=PatchTower, params=tower)},
            "input_projections": [ModuleSpec(module=MultimodalProjector, params=projector)],
        },
    )
