"""What one module costs: arithmetic, parameters and kept activations of its layers and of its two ends.

A unit is what the module counts its input by: an item (an image) for an encoder, a sample for the language model.
"""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.errors import UsageError


def stage_layers(num_layers: int, stage: int, num_stages: int) -> range:
    """Return the layers of a stage, as even as they go.

    >>> [list(stage_layers(5, stage, 3)) for stage in range(3)]
    [[0], [1, 2], [3, 4]]
    """
    if num_stages > num_layers:
        raise UsageError(f"pp must not exceed the layers, but got pp {num_stages} and {num_layers} layers.")
    return range(num_layers * stage // num_stages, num_layers * (stage + 1) // num_stages)


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
    is_trained: bool = True
    """False: frozen, without gradients of its own weights and without optimizer."""
    passes_gradient: bool = True
    """Whether gradients go through it to something before it that is trained."""

    @property
    def backward_share(self) -> int:
        """How many times the forward arithmetic its backward pass takes: once for its weights, once for its input."""
        return int(self.is_trained) + int(self.passes_gradient)

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
    depths: tuple[tuple[str, int], ...] = ()
    """What pp must divide, by name."""
    groups: tuple[tuple[str, int], ...] = ()
    """What tp must divide or be a multiple of, by name."""
    num_segments: int = 0
    """The stages that the model spells out, which pp must then be."""
    dispatched_numbers: float = 0.0
    """Numbers that a layer sends to experts on other ranks, for one unit and one way."""
    num_experts: int = 0

    @property
    def is_trained(self) -> bool:
        """Whether any part of it is."""
        return any(part.is_trained for part in (self.first, self.layer, self.last))

    @property
    def has_backward(self) -> bool:
        """Whether any part of it has a backward pass."""
        return any(part.backward_share for part in (self.first, self.layer, self.last))

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
        """Return one rank's FLOPs for one unit backward: twice forward, and the blocks once more if recomputed.

        A frozen part takes once forward where gradients go through it, and nothing where nothing before it is trained.
        """
        total = 0.0
        for part, count in self.stage_parts(stage, num_stages):
            again = recompute and part is self.layer and part.backward_share > 0
            total += count * part.flops(tp) * (part.backward_share + again)
        return total

    def why_not_tp(self, tp: int) -> str | None:
        """Return what of a module a tensor parallelism cannot split; None where it goes."""
        for what, width in self.widths:
            if width % tp:
                return f"{what} must be a multiple of tp, but got {width} and tp {tp}: change one of them."
        for what, number in self.groups:
            if number % tp and tp % number:
                return (
                    f"{what} must be a multiple or a divisor of tp, but got {number} and tp {tp}: change one of them."
                )
        return None

    def why_not_pp(self, pp: int) -> str | None:
        """Return why a module cannot be cut into so many stages; None where it can."""
        if pp > self.num_layers:
            return f"pp must not exceed the layers, but got pp {pp} and {self.num_layers} layers."
        if self.num_segments and pp != self.num_segments:
            return (
                f"pp must be the number of segments in the pattern, but got pp {pp} and {self.num_segments} segments."
            )
        for what, depth in self.depths:
            if depth % pp:
                return f"{what} must be a multiple of pp, but got {depth} and pp {pp}: change one of them."
        return None
