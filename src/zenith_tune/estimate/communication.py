"""How long the ranks of a group take to exchange what they hold.

Legend: n ranks in a group, k of them in one fast domain; V bytes that each rank ends up with or starts from.

All-gather and reduce-scatter over a ring move (n-1)/n * V over every link (Thakur et al., "Optimization of Collective
Communication Operations in MPICH", 2005). Over several fast domains each rank carries its k-th part over the network
while the rest goes through the fast links, as NCCL's rings do with one network card per GPU.

Ranks are laid out with tensor parallelism innermost, then context, data and pipeline (Megatron's tp-cp-ep-dp-pp).

What the ranks that hold the same weights exchange once per step, or per micro-batch where weights are sharded.

ZeRO stages as in Rajbhandari et al., arXiv 1910.02054, section 7: stages 1 and 2 reduce-scatter gradients and gather
weights, the volume of an all-reduce; stage 3 gathers the weights for every forward and every backward pass. Stage 2
keeps no whole gradients, so that without a pipeline it reduces them after every micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimate.calibration import TimeCoefficients
from zenith_tune.estimate.compute import tokens_per_rank
from zenith_tune.estimate.workload import FloatArray, Machine, Number, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

BF16 = 2.0
ALL_TO_ALL = 0.5
"""Share of the network that a plain all-to-all reaches: an assumption, since no run at hand shows it by itself."""


def gather_time(
    num_bytes: Number, ranks: FloatArray, near: FloatArray, machine: Machine, c: TimeCoefficients
) -> FloatArray:
    """Return the time to gather or scatter `num_bytes` over `ranks`, `near` of which share a fast domain."""
    domains = ranks / near
    fast = (near - 1) / near / (machine.fast_bytes_per_s * c.fast_efficiency)
    slow = (domains - 1) / domains / near / (machine.slow_bytes_per_s * c.slow_efficiency)
    return num_bytes * (fast + slow)


def ranks_nearby(ranks: FloatArray, stride: FloatArray, machine: Machine) -> FloatArray:
    """Return how many ranks of a group with `stride` between neighbours share a fast domain."""
    return np.clip(np.floor(machine.fast_domain / stride), 1.0, ranks)


def tensor_time(
    workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients
) -> FloatArray:
    """Return the exposed tensor-parallel traffic of one layer and micro-batch, forward and backward.

    Two all-reduces forward and two backward, or twice as many gathers and scatters of the same bytes with sequence
    parallelism (Korthikanti et al. 2022, section 4.2.2). Half of them are the feed-forward part's; routed experts have
    none, since the all-to-all takes each rank's own tokens.
    """
    tp = layouts.tp.astype(np.float64)
    routed_only = workload.num_moe_layers / workload.num_layers * (workload.shared_ffn_hidden == 0)
    volume = (8 - 4 * routed_only) * tokens_per_rank(workload, layouts) * workload.hidden * BF16
    near = ranks_nearby(tp, np.ones_like(tp), machine)
    return gather_time(volume, tp, near, machine, coefficients) * coefficients.tensor_exposed


def context_time(
    workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients, attention_s: FloatArray
) -> FloatArray:
    """Return what of the ring of keys and values attention does not hide (Liu et al., Ring Attention, 2310.01889)."""
    cp, tp = layouts.cp.astype(np.float64), layouts.tp.astype(np.float64)
    volume = 3 * tokens_per_rank(workload, layouts) * cp * workload.kv_size / tp * BF16
    ring = gather_time(volume, cp, ranks_nearby(cp, tp, machine), machine, coefficients)
    return np.maximum(ring - attention_s, 0.1 * ring)


def expert_exchange_time(
    workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients
) -> FloatArray:
    """Return the exposed exchange of one layer with experts: tokens go out and come back, forward and backward.

    Nothing runs beside a plain all-to-all. Kernels like DeepEP's use the network fully, send a token to a node once and
    run beside other work: what that leaves exposed is measured as a whole.
    """
    w, c = workload, coefficients
    ep, etp = layouts.ep.astype(np.float64), layouts.etp.astype(np.float64)
    routed = w.top_k * tokens_per_rank(w, layouts) / layouts.tp * w.hidden * BF16
    near = ranks_nearby(ep, etp, machine)
    network = machine.slow_bytes_per_s * np.where(w.fused_dispatch, c.slow_efficiency, ALL_TO_ALL)
    outside = routed * (ep - near) / ep / network
    inside = routed * (near - 1) / ep / (machine.fast_bytes_per_s * c.fast_efficiency)
    split = gather_time(routed * etp, etp, ranks_nearby(etp, np.ones_like(etp), machine), machine, c)
    return 4 * (outside + inside + split) * np.where(w.fused_dispatch, c.expert_exposed, 1.0)


def handover_time(
    workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients
) -> FloatArray:
    """Return the time of one activation and one gradient between neighbouring stages."""
    tp = layouts.tp.astype(np.float64)
    stride = tp * layouts.cp * layouts.dp
    volume = 2 * tokens_per_rank(workload, layouts) * workload.hidden * BF16
    volume = volume / np.where(layouts.sequence_parallel, tp, 1.0)
    fast = machine.fast_bytes_per_s * coefficients.fast_efficiency
    slow = machine.slow_bytes_per_s * coefficients.slow_efficiency
    near = stride * layouts.pp <= machine.fast_domain
    latency = 2 * np.where(near, machine.fast_latency_s, machine.slow_latency_s)
    return np.where(layouts.pp > 1, volume / np.where(near, fast, slow) + latency, 0.0)


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
