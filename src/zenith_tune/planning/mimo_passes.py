"""What one pass of a stage takes on its ranks: arithmetic, and the sums of its tensor-parallel group."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.mimo.module_layout import ModuleLayout
from zenith_tune.mimo.module_work import ModuleWork
from zenith_tune.mimo.stage_layers import stage_layers
from zenith_tune.planner.mimo.job import MimoDevice
from zenith_tune.planning.mimo_rates import ModuleRates

SUMS_PER_LAYER = 2
"""Forward after attention and after the perceptron, backward before them (Megatron-LM, arXiv 1909.08053, figure 4)."""


def all_reduce_s(link: LinkSpec, num_bytes: float, n: int) -> float:
    """Return the time of a ring's 2 (n - 1) steps of bytes / n each; nothing for one rank."""
    return 2 * (n - 1) * (link.latency_s + num_bytes / n / link.bytes_per_s) if n > 1 else 0.0


def message_s(link: LinkSpec, num_bytes: float) -> float:
    """Return the time from one rank to another."""
    return link.latency_s + num_bytes / link.bytes_per_s


@dataclass(frozen=True, slots=True)
class PassTime:
    """Hold the time of one pass."""

    compute_s: float = 0.0
    tensor_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Return both together: a rank waits for the sums."""
        return self.compute_s + self.tensor_s


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePasses:
    """Tell what the passes of one stage take, by the units of a micro-batch."""

    work: ModuleWork
    layout: ModuleLayout
    stage: int
    recompute: bool
    device: MimoDevice
    expert_parallel: int = 1
    rates: ModuleRates | None = None
    """What passes of the module took for real, where that is known."""

    def forward(self, num_units: float) -> PassTime:
        """Return the time of a forward pass over that many units."""
        if self.rates is not None:
            return self._measured(self.rates, num_units, False)
        flops = self.work.forward_flops(stage=self.stage, num_stages=self.layout.pp, tp=self.layout.tp)
        return PassTime(num_units * flops / self.device.flops_per_s, self._exchanges_s(num_units, 1, is_forward=True))

    def backward(self, num_units: float) -> PassTime:
        """Return the time of a backward pass over that many units."""
        if not self.work.has_backward:
            return PassTime()
        if self.rates is not None:
            return self._measured(self.rates, num_units, True)
        stage, pp, tp = self.stage, self.layout.pp, self.layout.tp
        flops = self.work.backward_flops(stage=stage, num_stages=pp, tp=tp, recompute=self.recompute)
        if not self.work.layer.backward_share:
            return PassTime(num_units * flops / self.device.flops_per_s)
        rounds = 2 if self.recompute else 1
        return PassTime(num_units * flops / self.device.flops_per_s, self._exchanges_s(num_units, rounds, False))

    def _measured(self, rates: ModuleRates, num_units: float, is_backward: bool) -> PassTime:
        """Return a pass by measured times; a recomputed block runs forward once more."""
        at = (self.work, self.layout, self.stage, num_units)
        total_s, tensor_s = rates.pass_s(*at, is_backward), rates.tensor_s(*at, is_backward)
        if is_backward and self.recompute:
            total_s, tensor_s = total_s + rates.pass_s(*at, False), tensor_s + rates.tensor_s(*at, False)
        return PassTime(total_s - tensor_s, tensor_s)

    def _exchanges_s(self, num_units: float, rounds: int, is_forward: bool) -> float:
        """Return the time of the sums over tp and of the ways to the experts and back; none where there is nothing."""
        if not num_units:
            return 0.0
        num_layers = len(stage_layers(self.work.num_layers, self.stage, self.layout.pp))
        ends = int(self.stage == 0 and is_forward) + int(self.stage == self.layout.pp - 1)
        link, number = self.device.tensor_link, self.device.number_bytes
        one_sum = all_reduce_s(link, num_units * self.work.hidden_numbers * number, self.layout.tp)
        experts = 0.0
        if self.expert_parallel > 1:
            away = (self.expert_parallel - 1) / self.expert_parallel
            num_bytes = num_units * self.work.dispatched_numbers * number / self.layout.tp
            experts = 2 * message_s(self.device.link, away * num_bytes)
        return rounds * num_layers * (SUMS_PER_LAYER * one_sum + experts) + ends * one_sum
