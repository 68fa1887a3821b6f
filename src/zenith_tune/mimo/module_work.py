"""What one module costs: arithmetic, parameters and kept activations of its layers and of its two ends.

A unit is what the module counts its input by: an item (an image) for an encoder, a sample for the language model.
"""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.mimo.stage_layers import stage_layers


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWork:
    """One layer, or one end of a module; what tensor parallelism splits, and what every rank of the group has whole."""

    split_flops: float = 0.0
    """Forward, for one unit."""
    whole_flops: float = 0.0
    split_params: float = 0.0
    whole_params: float = 0.0
    expert_params: float = 0.0
    """Split by expert parallelism instead."""
    split_kept: float = 0.0
    """Numbers kept for the backward pass, for one unit."""
    whole_kept: float = 0.0

    def flops(self, tp: int) -> float:
        """Return one rank's forward FLOPs of one unit."""
        return self.split_flops / tp + self.whole_flops

    def params(self, tp: int, expert_ranks: int = 1) -> float:
        """Return one rank's parameters."""
        return self.split_params / tp + self.whole_params + self.expert_params / expert_ranks

    def kept(self, tp: int) -> float:
        """Return the numbers that one rank keeps of one unit."""
        return self.split_kept / tp + self.whole_kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleWork:
    """The layers of a module, all alike, between what its first and what its last stage have besides."""

    num_layers: int
    layer: PartWork
    first: PartWork
    last: PartWork
    hidden_numbers: float
    """Numbers between two layers, for one unit: a message of the pipeline, and what recomputation keeps."""
    output_numbers: float = 0.0
    """Numbers that an encoder gives to the language model for one item."""
    widths: tuple[tuple[str, int], ...] = ()
    """What tp must divide, by name."""
    is_trained: bool = True
    """False: frozen, no backward pass and no optimizer."""
    dispatched_numbers: float = 0.0
    """Numbers that a layer sends to experts on other ranks, for one unit and one way."""
    num_experts: int = 0

    def stage_parts(self, stage: int, num_stages: int) -> list[tuple[PartWork, int]]:
        """Return the parts of a stage, each with how many there are."""
        parts = [(self.layer, len(stage_layers(self.num_layers, stage, num_stages)))]
        if stage == 0:
            parts.append((self.first, 1))
        if stage == num_stages - 1:
            parts.append((self.last, 1))
        return parts

    def forward_flops(self, *, stage: int, num_stages: int, tp: int) -> float:
        """Return one rank's FLOPs for one unit forward."""
        return sum(count * part.flops(tp) for part, count in self.stage_parts(stage, num_stages))

    def backward_flops(self, *, stage: int, num_stages: int, tp: int, recompute: bool) -> float:
        """Return one rank's FLOPs for one unit backward: twice forward, and the blocks once more if recomputed."""
        if not self.is_trained:
            return 0.0
        again = len(stage_layers(self.num_layers, stage, num_stages)) * self.layer.flops(tp) if recompute else 0.0
        return 2.0 * self.forward_flops(stage=stage, num_stages=num_stages, tp=tp) + again
