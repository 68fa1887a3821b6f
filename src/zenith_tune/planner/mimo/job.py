"""What layouts of an encoder and a language model are planned for: their work, the ranks, the batch and the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.mimo.module_layout import ModuleLayout
from zenith_tune.mimo.module_work import ModuleWork, stage_layers

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


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoDevice:
    """Hold what one rank computes with, and what a message between two costs."""

    flops_per_s: float
    tensor_link: LinkSpec
    """Between the ranks of a tensor-parallel group."""
    link: LinkSpec
    """Between all others."""
    memory_bytes: float = math.inf
    number_bytes: int = 4
    """Of activations and gradients on their way."""
    state_bytes: float = 16.0
    """Weight, gradient and optimizer state of one parameter."""
    sharded_bytes: float = 0.0
    """How many of these the data-parallel ranks share out."""
    step_s: float = 0.0
    """What a step costs whatever the layout: the optimizer and the agreements of all ranks."""
    is_known: bool = False
    """Whether all this is said by somebody who must know, and not guessed."""
    rates: MimoRates | None = None
    """Measured times, which go before all that is said here of arithmetic and links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoJob:
    """Hold all that a plan of per-module layouts needs."""

    encoder: ModuleWork
    language: ModuleWork
    num_ranks: int
    global_batch: int
    items: tuple[int, ...]
    """Items of the samples, round and round."""
    device: MimoDevice
    can_share_ranks: bool = True
    """Whether both modules may live on all ranks."""
    can_pipeline_encoder: bool = True
    can_join_uneven: bool = True
    """Whether more encoder lanes than language lanes may bring different numbers of items."""
    recompute: tuple[tuple[bool, bool], ...] = ((False, False), (True, False), (False, True), (True, True))
    """Which of encoder and language model may recompute their activations, the least first."""
    expert_tensor: int = 1
    """Tensor parallelism inside an expert."""
    weight_shards: int = 0
    """Parts of each of the language model's weights, over tp ranks and data-parallel ranks that gather them; 0: tp."""
    expert_shards: int = 0
    """The same of each expert's weights; 0: their tensor parallelism."""

    def expert_ranks(self, expert_parallel: int) -> int:
        """Return the ranks over which the experts' weights are split."""
        return (self.expert_shards or self.expert_tensor) * expert_parallel

    @property
    def has_even_items(self) -> bool:
        """Tell whether every sample has as many items."""
        return len(set(self.items)) == 1

    def period(self, samples: int) -> int:
        """Return after how many micro-batches of that many samples the items repeat."""
        return len(self.items) // math.gcd(len(self.items), samples)

    def num_items(self, begin: int, end: int) -> int:
        """Return the items of these samples of a global batch."""
        return sum(self.items[index % len(self.items)] for index in range(begin, end))
