"""What passes, sums, messages and the end of a step take where that was measured and need not be guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zenith_tune.mimo.module_layout import ModuleLayout
from zenith_tune.mimo.module_work import ModuleWork
from zenith_tune.mimo.stage_layers import stage_layers

PARTS = ("first", "layer", "last")
"""What the first stage has besides its layers, one layer, and what the last stage has besides."""


@dataclass(frozen=True, slots=True)
class Line:
    """A time that grows with what it is for: `fixed_s`, and `each_s` more for every unit or byte."""

    fixed_s: float
    each_s: float

    def at(self, amount: float) -> float:
        """Return the time for so much."""
        return self.fixed_s + self.each_s * amount


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRates:
    """Hold the measured time of each part of a module, by tp, sums over the tensor-parallel ranks and all."""

    parts: Mapping[tuple[str, bool, int], Line]
    """By part, whether it is backward, and tp."""

    def pass_s(self, work: ModuleWork, layout: ModuleLayout, stage: int, units: float, is_backward: bool) -> float:
        """Return the time of a pass of one stage."""
        return self._seconds(work, layout, stage, units, is_backward, layout.tp)

    def tensor_s(self, work: ModuleWork, layout: ModuleLayout, stage: int, units: float, is_backward: bool) -> float:
        """Return what of it tensor parallelism costs: all above the arithmetic's share of one rank's time."""
        if layout.tp == 1 or not units:
            return 0.0
        alone = self._seconds(work, layout, stage, units, is_backward, 1)
        whole = work.forward_flops(stage=stage, num_stages=layout.pp, tp=1)
        share = work.forward_flops(stage=stage, num_stages=layout.pp, tp=layout.tp) / whole if whole else 1.0
        return max(self.pass_s(work, layout, stage, units, is_backward) - alone * share, 0.0)

    def _seconds(
        self, work: ModuleWork, layout: ModuleLayout, stage: int, units: float, is_backward: bool, tp: int
    ) -> float:
        # Ranks that have nothing to sum do not meet: then a pass is that of one rank.
        tp = tp if units else 1
        counts = {"layer": len(stage_layers(work.num_layers, stage, layout.pp))}
        counts |= {"first": int(stage == 0), "last": int(stage == layout.pp - 1)}
        return sum(count * self.parts[part, is_backward, tp].at(units) for part, count in counts.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoRates:
    """Hold the measured rates of a job on its ranks."""

    encoder: ModuleRates
    language: ModuleRates
    message: Line
    """By bytes, between two ranks."""
    sums: Mapping[int, Line] = field(default_factory=dict)
    """By ranks, then by bytes."""
    agree_s: float = 0.0
    """The end of a step that no layout spares: what all ranks agree on."""
    param_s: float = 0.0
    """Checks, norm, clipping and update of one parameter."""
    layer_s: float = 0.0
    """The same of one layer's handful of tensors, whatever their size."""
    sync_byte_s: float = 0.0
    """Sum of one byte of gradient over two replicas, with its copies."""

    def sync_s(self, num_bytes: float, num_replicas: int) -> float:
        """Return the time of summing gradients: copies, and a ring's (n - 1) / n twice."""
        return self.sync_byte_s * num_bytes * (0.5 + (num_replicas - 1) / num_replicas) if num_replicas > 1 else 0.0

    def update_s(self, params: float, num_layers: int) -> float:
        """Return the time of one rank's part of the optimizer."""
        return self.param_s * params + self.layer_s * num_layers
