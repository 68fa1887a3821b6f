"""The modules that this rank trains."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from zenith_mimo.planning.config import LANGUAGE, EncoderConfig, LanguageConfig, MimoConfig
from zenith_mimo.samples import MicroBatch
from zenith_mimo.tensor_parallel import (
    ColumnLinear,
    LayerNorm,
    RowLinear,
    StageBlocks,
    TensorParallel,
    VocabEmbedding,
    fill_parameters,
    shard_of,
    vocab_cross_entropy,
)
from zenith_mimo.topology import ModuleRole, Topology
from zenith_tune.errors import UsageError


class PatchEmbedding(nn.Module):
    """Patches as hidden vectors, each with its position in the item."""

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
    """The projection of the encoder's vectors into the language model's space."""

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
        self._patch_shape = (config.patches_per_item, config.transformer.hidden_size)
        is_last = stage == num_stages - 1
        self.projector = Projector(config.transformer.hidden_size, language_width, tp) if is_last else None

    def embed(self, items: Tensor) -> Tensor:
        """Return the first stage's hidden vectors."""
        assert self.embedding is not None, "only the first stage embeds"
        return self.embedding(items)

    def rows(self, hidden: Tensor) -> Tensor:
        """Return what leaves the last stage: one row per patch."""
        assert self.projector is not None, "only the last stage has rows"
        return self.projector(hidden)

    def forward(self, items: Tensor) -> Tensor:
        """Return the rows of an encoder of one stage."""
        return self.rows(self.blocks(self.embed(items)))

    def hidden_shape(self, batch: MicroBatch, rows_per_sample: list[int]) -> tuple[int, ...]:
        """Return the shape of what comes from the stage before."""
        return sum(rows_per_sample) // self._patch_shape[0], *self._patch_shape


def with_rows(hidden: Tensor, tokens: Tensor, rows: Mapping[str, Tensor], token_ids: Mapping[str, int]) -> Tensor:
    """Return a text's vectors with the encoders' rows at their tokens, counted on the CPU without waiting for it."""
    for name, token_id in sorted(token_ids.items()):
        is_item = tokens == token_id
        num_tokens, num_rows = int(is_item.sum()), rows[name].shape[0]
        if num_tokens != num_rows:
            raise UsageError(
                f"the text must hold one token {token_id} for each row of {name}, but got {num_tokens} tokens and "
                f"{num_rows} rows: check the samples."
            )
        hidden = hidden.masked_scatter(is_item.to(hidden.device).unsqueeze(-1), rows[name])
    return hidden


class MultimodalEmbedding(nn.Module):
    """The text's embedding, with the encoders' rows at their tokens."""

    def __init__(self, config: LanguageConfig, token_ids: Mapping[str, int], tp: TensorParallel) -> None:
        super().__init__()
        width = config.transformer.hidden_size
        self._token_ids = dict(token_ids)
        self.words = VocabEmbedding(config.vocab_size, width, tp)
        self.position = tp.parameter(config.seq_length, width)

    def forward(self, tokens: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return (samples, tokens, hidden)."""
        hidden = with_rows(self.words(tokens.to(self.position.device)), tokens, rows, self._token_ids)
        return hidden + self.position[: tokens.shape[1]]


class Head(nn.Module):
    """The loss of every token from the hidden vectors."""

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
        self._width, self.vocab_size = config.transformer.hidden_size, config.vocab_size

    def embed(self, tokens: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the first stage's hidden vectors."""
        assert self.embedding is not None, "only the first stage embeds"
        return self.embedding(tokens, rows)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after this stage's blocks."""
        return self.blocks(hidden)

    def hidden_shape(self, batch: MicroBatch, rows_per_sample: list[int]) -> tuple[int, ...]:
        """Return the shape of what comes from the stage before."""
        return *batch.tokens.shape, self._width

    def loss(self, hidden: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
        """Return the last stage's loss, summed over the tokens that count."""
        assert self.head is not None, "only the last stage has a loss"
        return (self.head(hidden, labels) * loss_mask).sum()


def build_module(
    config: MimoConfig, name: str, tp: TensorParallel | None = None, *, stage: int = 0, num_stages: int = 1
) -> ItemEncoder | LanguageModel:
    """Return one stage of a module, filled from the seed; without `tp` and stages it is the whole."""
    tp = tp or TensorParallel()
    recompute = name in config.recompute
    if name == LANGUAGE:
        token_ids = {encoder: of.token_id for encoder, of in config.encoders.items()}
        module = LanguageModel(config.language, token_ids, tp, stage=stage, num_stages=num_stages, recompute=recompute)
    else:
        width = config.language.transformer.hidden_size
        module = ItemEncoder(config.encoders[name], width, tp, stage=stage, num_stages=num_stages, recompute=recompute)
    fill_parameters(module, config.seed)
    for parameter_name, parameter in module.named_parameters():
        if config.is_frozen(f"{name}.{parameter_name}"):
            parameter.requires_grad_(False)
    return module


def call(method: Callable[..., Tensor], *inputs: Any, side: Mapping[str, Tensor]) -> Tensor:
    """Call a stage's method, with the side inputs where it has the parameter `side`."""
    forward = method.forward if isinstance(method, nn.Module) else method
    return method(*inputs, side=side) if "side" in inspect.signature(forward).parameters else method(*inputs)


class EncoderStage(Protocol):
    """A rank's part of an encoder: any nn.Module with these methods and a callable `blocks`.

    The first three may have a parameter `side`: what the samples say of the items besides, by name (image sizes).
    """

    def embed(self, items: Tensor) -> Tensor:
        """Return the hidden vectors of a micro-batch's items; asked of the first stage."""

    def blocks(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after this stage's layers."""

    def rows(self, hidden: Tensor) -> Tensor:
        """Return (rows, width): what stands in the text for the items; asked of the last stage."""

    def hidden_shape(self, batch: MicroBatch, rows_per_sample: list[int]) -> tuple[int, ...]:
        """Return the shape of what comes from the stage before, given the rows of each sample's items."""


class LanguageStage(Protocol):
    """A rank's part of the language model: any nn.Module with these methods and a callable `blocks`.

    The first three may have a parameter `side`: what the samples say of the text besides (positions, a mask).
    """

    vocab_size: int
    """The number of tokens that it knows."""

    def embed(self, tokens: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the hidden vectors of the text with the encoders' rows in it; asked of the first stage."""

    def blocks(self, hidden: Tensor) -> Tensor:
        """Return the hidden vectors after this stage's layers."""

    def loss(self, hidden: Tensor, labels: Tensor, loss_mask: Tensor) -> Tensor:
        """Return the loss summed over the tokens that count; asked of the last stage."""

    def hidden_shape(self, batch: MicroBatch, rows_per_sample: list[int]) -> tuple[int, ...]:
        """Return the shape of what comes from the stage before."""


BuildStage = Callable[[TensorParallel, int, int], nn.Module]
"""Makes a module's stage of that number of so many; parameters that tp splits say so by their `shard`."""


class MimoModel(nn.Module):
    """This rank's stage of each module that its place in the topology gives it."""

    def __init__(
        self,
        builders: Mapping[str, BuildStage],
        topology: Topology,
        *,
        row_width: int,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if sorted(topology.layout.modules) != sorted(builders):
            raise UsageError(
                f"the layout must place every module of the model, but it places "
                f"{sorted(topology.layout.modules)} and the model has {sorted(builders)}."
            )
        self.topology, self.device, self.dtype, self.row_width = topology, device, dtype, row_width
        self.config: MimoConfig | None = None
        """Sizes of the example's model."""
        self.parts = nn.ModuleDict({name: self._build(builders[name], role) for name, role in topology.roles.items()})

    @classmethod
    def of(
        cls, config: MimoConfig, topology: Topology, *, device: str = "cpu", dtype: torch.dtype = torch.float32
    ) -> MimoModel:
        """Return the example's model."""
        builders: dict[str, BuildStage] = {
            name: functools.partial(_build_example, config, name) for name in [*config.encoders, LANGUAGE]
        }
        width = config.language.transformer.hidden_size
        model = cls(builders, topology, row_width=width, device=device, dtype=dtype)
        model.config = config
        return model

    def _build(self, build: BuildStage, role: ModuleRole) -> nn.Module:
        tp = TensorParallel(
            group=role.groups.tp, size=role.layout.tp, rank=role.tp_rank, device=self.device, dtype=self.dtype
        )
        module = build(tp, role.pp_rank, role.layout.pp)
        for name, tensor in {**dict(module.named_parameters()), **persistent_buffers(module)}.items():
            if not hasattr(tensor, "shard") and role.layout.tp > 1:
                problem = f"{role.name} cannot be split by tensor parallelism, since {name} does not say its shard"
                raise UsageError(f"{problem}, but tp is {role.layout.tp}", hint="set it to 1.")
            tensor.shard = shard_of(tensor)
        return module


def tie_to_other_end(parameter: nn.Parameter) -> None:
    """Say that a module's first and last stage both have this parameter, under one name: it has one gradient."""
    parameter.is_tied = True


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are part of a module's state."""
    state = module.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in module.named_buffers() if name in state}


def _build_example(config: MimoConfig, name: str, tp: TensorParallel, stage: int, num_stages: int) -> nn.Module:
    return build_module(config, name, tp, stage=stage, num_stages=num_stages)
