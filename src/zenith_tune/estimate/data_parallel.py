"""What the ranks that hold the same weights exchange once per step, or per micro-batch where weights are sharded.

ZeRO stages as in Rajbhandari et al., arXiv 1910.02054, section 7: stages 1 and 2 reduce-scatter gradients and gather
weights, the volume of an all-reduce; stage 3 gathers the weights for every forward and every backward pass. Stage 2
keeps no whole gradients, so that without a pipeline it reduces them after every micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimate.communication import BF16, gather_time, ranks_nearby
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.machine import Machine
from zenith_tune.estimate.time_coefficients import TimeCoefficients
from zenith_tune.estimate.workload import Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

NEVER_HIDDEN = 0.1
"""Share of the traffic that stays exposed whatever runs beside it: the first bucket, and the last."""


@dataclass(frozen=True, slots=True)
class LocalParams:
    """Hold how many parameters one rank of the fullest stage has."""

    dense: FloatArray
    experts: FloatArray


def local_params(workload: Workload, layouts: LayoutBatch, stage_layers: FloatArray) -> LocalParams:
    """Return the parameters of one rank whose stage has `stage_layers`; each end of a pipeline has a vocabulary."""
    w, tp = workload, layouts.tp
    moe_share = w.num_moe_layers / w.num_layers
    per_layer = w.attention_params + 2 * w.norm_params
    per_layer = per_layer + (1 - moe_share) * w.dense_mlp_params + moe_share * w.shared_params
    tables = w.embedding_params * np.where(layouts.pp > 1, 1.0, 2 - w.tied)
    experts = moe_share * w.num_experts * w.expert_params / (layouts.ep * layouts.etp)
    return LocalParams((per_layer * stage_layers + tables) / tp, experts * stage_layers)


def exchange_time(
    params: LocalParams, machine: Machine, layouts: LayoutBatch, num_bytes: float, c: TimeCoefficients
) -> FloatArray:
    """Return the time to gather or scatter `num_bytes` per parameter over the ranks that share it."""
    tp, cp, dp = (column.astype(np.float64) for column in (layouts.tp, layouts.cp, layouts.dp))
    ranks, experts = dp * cp, np.maximum(layouts.edp, 1.0)
    expert_stride = (layouts.ep * layouts.etp).astype(np.float64)
    dense_s = gather_time(params.dense * num_bytes, ranks, ranks_nearby(ranks, tp, machine), machine, c)
    near = ranks_nearby(experts, expert_stride, machine)
    expert_s = gather_time(params.experts * num_bytes, experts, near, machine, c)
    domains = np.maximum(ranks * tp / machine.fast_domain, 1.0)
    return (dense_s + expert_s) * domains**c.data_decay


def data_time(
    params: LocalParams,
    machine: Machine,
    layouts: LayoutBatch,
    framework: FrameworkSpec,
    coefficients: TimeCoefficients,
    pass_s: FloatArray,
) -> FloatArray:
    """Return the exposed time of reducing gradients and gathering weights; `pass_s` is one micro-batch of a stage."""
    c, m = coefficients, layouts.num_micro_batches
    gradients = exchange_time(params, machine, layouts, framework.reduced_gradient_bytes, c)
    weights = exchange_time(params, machine, layouts, BF16, c)
    hidden = c.data_overlap * pass_s * (2 / 3)
    plain = _exposed(2 * gradients, hidden)
    sharded = _exposed((gradients + weights) * c.shard_penalty, hidden)
    often = _exposed(gradients, hidden) * m + _exposed(weights, hidden)
    each_pass = _exposed(2 * weights + gradients, c.data_overlap * pass_s) * m
    reduces_often = (layouts.zero == 2) & (layouts.pp == 1)
    return np.select([layouts.zero == 0, layouts.zero == 3, reduces_often], [plain, each_pass, often], sharded)


def _exposed(traffic: FloatArray, hidden: FloatArray) -> FloatArray:
    return np.maximum(traffic - hidden, NEVER_HIDDEN * traffic)
