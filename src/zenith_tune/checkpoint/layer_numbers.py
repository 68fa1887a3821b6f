"""Layers over pipeline stages: numbered anew on each stage, as Megatron does, or through all of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import accumulate

from zenith_tune.checkpoint.split_rules import layer_of
from zenith_tune.errors import UsageError


class Numbering(enum.Enum):
    """Say what the number in a layer's name counts."""

    LOCAL = "local"
    GLOBAL = "global"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNumbers:
    """Hold how many layers each stage has, and how they are numbered."""

    per_stage: tuple[int, ...]
    numbering: Numbering

    @property
    def num_layers(self) -> int:
        """Layers of all stages."""
        return sum(self.per_stage)

    def first(self, stage: int) -> int:
        """Return the global number of a stage's first layer."""
        return sum(self.per_stage[:stage])

    def to_global(self, stage: int, number: int) -> int:
        """Return the global number of a layer by its number in the shards of a stage."""
        return number + (self.first(stage) if self.numbering is Numbering.LOCAL else 0)

    def place(self, number: int) -> tuple[int, int]:
        """Return the stage of a layer by its global number, and its number in the shards of that stage.

        >>> LayerNumbers(per_stage=(2, 3), numbering=Numbering.LOCAL).place(3)
        (1, 1)
        """
        ends = accumulate(self.per_stage)
        stage = next(stage for stage, end in enumerate(ends) if number < end)
        return stage, number - (self.first(stage) if self.numbering is Numbering.LOCAL else 0)


def find_numbers(names_by_stage: list[list[str]]) -> LayerNumbers:
    """Return how the layers of a checkpoint are numbered, or refuse what is numbered neither way."""
    places = [{place for name in names if (place := layer_of(name)) is not None} for names in names_by_stage]
    lists = sorted({container for stage in places for container, _ in stage})
    if len(lists) > 1:
        law = f"the model must have one list of layers, but has {len(lists)} ({', '.join(map(repr, lists))})"
        raise UsageError(f"{law}: encoder-decoder and multimodal checkpoints are not supported")
    numbers = [sorted(number for _, number in stage) for stage in places]
    per_stage = tuple(len(stage) for stage in numbers)
    starts = [sum(per_stage[:stage]) for stage in range(len(per_stage))]
    if all(stage == list(range(len(stage))) for stage in numbers):
        return LayerNumbers(per_stage=per_stage, numbering=Numbering.LOCAL)
    if all(stage == list(range(start, start + len(stage))) for start, stage in zip(starts, numbers, strict=True)):
        return LayerNumbers(per_stage=per_stage, numbering=Numbering.GLOBAL)
    shown = "; ".join(f"stage {stage}: {_shown(found)}" for stage, found in enumerate(numbers))
    law = "layers must be numbered from 0 on each stage, or through all stages without a gap"
    raise UsageError(f"{law}, but are {shown}: a shard is missing or of another checkpoint")


def _shown(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} ... {numbers[-1]}" if len(numbers) > 8 else shown or "none"


def spread(num_layers: int, pp: int, given: tuple[int, ...] | None, numbering: Numbering) -> LayerNumbers:
    """Return the layers of each stage of a new layout: those given, or the same number on each."""
    if given is not None:
        if len(given) != pp or sum(given) != num_layers:
            law = f"--layers-per-stage must have {pp} numbers that add up to {num_layers} layers"
            raise UsageError(f"{law}, but got {','.join(map(str, given))}: change it")
        return LayerNumbers(per_stage=given, numbering=numbering)
    if num_layers % pp:
        law = f"{num_layers} layers cannot be spread evenly over {pp} stages"
        raise UsageError(f"{law}: choose another --pp, or say how by --layers-per-stage")
    return LayerNumbers(per_stage=(num_layers // pp,) * pp, numbering=numbering)
