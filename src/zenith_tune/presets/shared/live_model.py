"""The model that the user's own command trained, as the hook in its process saw it: its config or its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

from zenith_tune.describe.config_spec import model_spec_from_config
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.model_spec import ModelSpec, TracedLayers
from zenith_tune.errors import ModelConfigError, UsageError
from zenith_tune.units import count, format_params, positive_int

SAME_SIZE = 0.01
"""A config whose parameters differ by a larger share from those of the module describes another model."""
ALL_TRAINED = 0.99
"""Where a smaller share of the parameters is trained, gradients, optimizer and activations are not those of all."""
LEAST_KEPT = 1.5
"""Blocks that keep no more than so many times their input are recomputed in the backward pass."""
FEATURES_LAST = 3
"""Tensors of more sizes are images, or videos, with their channels ahead of them."""
HINT = "give --model NAME to plan with a model all the same"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveBlocks:
    """The blocks that a module repeats, and what each kept of one pass for the backward pass."""

    count: int
    num_params: int
    input_shape: tuple[int, ...] = ()
    input_bytes: int = 0
    kept_bytes: int = 0
    """By one block."""
    kept_outside_bytes: int = 0

    @property
    def hidden(self) -> int:
        """The width of a token: the last size, or of images the channels, which come after the samples."""
        return self.input_shape[1] if len(self.input_shape) > FEATURES_LAST else self.input_shape[-1]

    @classmethod
    def of(cls, report: object) -> Self | None:
        if not isinstance(report, Mapping) or not (_whole(report, "count") and _whole(report, "parameters")):
            return None
        return cls(
            count=_whole(report, "count"),
            num_params=_whole(report, "parameters"),
            input_shape=_shape(report),
            input_bytes=_whole(report, "input_bytes"),
            kept_bytes=_whole(report, "kept_bytes"),
            kept_outside_bytes=_whole(report, "kept_outside_bytes"),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """The trained module as its first rank described it."""

    name: str
    num_params: int
    num_trained: int
    num_models: int = 1
    """How many modules the script trains, this one among them."""
    config: Mapping[str, Any] | None = None
    dtype: str = ""
    head: int = 0
    """The width of its last linear layer."""
    input_shape: tuple[int, ...] = ()
    """Of the first pass: its samples, and their tokens."""
    blocks: LiveBlocks | None = None
    gpu: str | None = None

    @classmethod
    def of(cls, event: Mapping[str, Any] | None) -> Self | None:
        """Read the hook's line; None where there is none, or nothing is trained."""
        if event is None or not _whole(event, "trained") or not _whole(event, "parameters"):
            return None
        config, given = event.get("config"), event.get("input")
        return cls(
            name=str(event.get("name") or event.get("class")),
            num_params=_whole(event, "parameters"),
            num_trained=_whole(event, "trained"),
            num_models=_whole(event, "models"),
            config=config if isinstance(config, Mapping) else None,
            dtype=str(event.get("dtype")),
            head=_whole(event, "head"),
            input_shape=_shape({"input": given.get("shape")}) if isinstance(given, Mapping) else (),
            blocks=LiveBlocks.of(event.get("blocks")),
            gpu=event["gpu"] if isinstance(event.get("gpu"), str) else None,
        )

    @property
    def micro_batch(self) -> int | None:
        return self.input_shape[0] if self.input_shape else None

    def spec(self) -> ModelSpec:
        """Return the model as its config describes it, else as its blocks were seen; raise why neither can be."""
        if self.num_models > 1:
            raise UsageError(f"the script trains {self.num_models} models, and a plan is of one", hint=HINT)
        try:
            found = self._configured()
        except ModelConfigError as error:
            found = self._traced(error)
        return found if self.is_whole else replace(found, trained_share=self.num_trained / self.num_params)

    @property
    def is_whole(self) -> bool:
        return self.num_trained >= ALL_TRAINED * self.num_params

    def _configured(self) -> ModelSpec:
        """Return what the config describes, if that has as many parameters as the module."""
        if self.config is None:
            raise ModelConfigError(f"{self.name} has no config", hint=HINT)
        spec = model_spec_from_config(dict(self.config), self.name)
        # Beside an adapter a config describes what is frozen.
        num_described = self.num_params if self.is_whole else self.num_params - self.num_trained
        sizes = (self.num_params, num_described)
        if min(abs(spec.num_params - size) for size in sizes) > SAME_SIZE * self.num_params:
            counted, whole = format_params(spec.num_params), format_params(self.num_params)
            raise ModelConfigError(f"{self.name} has {whole} parameters, but its config describes {counted}", hint=HINT)
        return spec

    def _traced(self, no_config: UsageError) -> ModelSpec:
        """Return what its blocks showed in the first pass, or raise why they and the config do not describe it."""
        blocks, batch = self.blocks, self.micro_batch
        if blocks is None or batch is None:
            raise UsageError(f"{no_config.problem}, and it repeats no block", hint=HINT)
        if not blocks.kept_bytes or not blocks.input_shape or prod(blocks.input_shape) % batch:
            raise UsageError(f"{no_config.problem}, and what its blocks keep was not seen", hint=HINT)
        if blocks.kept_bytes < LEAST_KEPT * blocks.input_bytes:
            problem = f"{no_config.problem}, and its blocks are recomputed, so that what they keep is not seen"
            raise UsageError(problem, hint="run it without activation checkpointing, or give --model NAME")
        return self._spec_of(blocks, batch)

    def _spec_of(self, blocks: LiveBlocks, batch: int) -> ModelSpec:
        hidden = blocks.hidden
        tokens = prod(blocks.input_shape) // hidden
        other = max(self.num_params - blocks.count * blocks.num_params, 0)
        vocab = self.head if self.head * hidden <= other else 0
        is_sequence = self.input_shape[1:2] == (tokens // batch,)
        return ModelSpec(
            name=self.name,
            num_layers=blocks.count,
            hidden=hidden,
            ffn_hidden=0,
            num_heads=1,  # one that has no width: nothing of the blocks can be split
            num_kv_heads=1,
            head_dim=0,
            vocab=vocab,
            gated_mlp=False,
            tied_embeddings=True,
            num_positions=other // hidden - vocab,  # whatever else is outside of the blocks
            traced=TracedLayers(
                num_params=blocks.num_params,
                saved_bytes=blocks.kept_bytes / tokens,
                saved_other_bytes=blocks.kept_outside_bytes / tokens,
                num_tokens=None if is_sequence else tokens // batch,
            ),
        )


def model_notes(live: LiveModel | None, before: PlanSubject | UsageError, after: PlanSubject | UsageError) -> list[str]:
    """Return what was learnt of the model, and whether layouts are planned with it; nothing where nothing changed."""
    if live is None:
        return []
    if isinstance(after, UsageError):
        if live.gpu is None:  # there is nothing to plan a layout for
            return []
        return [f"layouts are not planned, also after your own command has run: {after}"]
    if isinstance(before, PlanSubject) and after == replace(before, model=replace(before.model, name=after.model.name)):
        return []
    model, job = after.model, after.job
    part = "" if live.is_whole else f", {format_params(live.num_trained)} of them trained"
    size = f"{format_params(live.num_params)} parameters{part}"
    shape = f"{count(model.num_layers, 'layer')}, hidden {model.hidden}, {size}"
    batch = f"sequences of {job.seq_len}, {job.precision}"
    how = "by what its blocks keep of a pass" if model.traced else "by its config"
    return [f"your own command trains {model.name} ({shape}; {batch}): layouts are planned {how}"]


def _whole(report: Mapping[str, Any], key: str) -> int:
    return positive_int(report.get(key)) or 0


def _shape(report: Mapping[str, Any]) -> tuple[int, ...]:
    sizes = report.get("input")
    is_shape = isinstance(sizes, list) and all(type(size) is int and size > 0 for size in sizes)
    return tuple(sizes) if is_shape and sizes else ()
