"""The messages between the ranks of a layout, and how much of their time no computation hides.

Ranks are laid out with tensor parallelism innermost, then context, data and pipeline (Megatron's tp-cp-ep-dp-pp).

ZeRO stages as in Rajbhandari et al., arXiv 1910.02054, section 7: stages 1 and 2 reduce-scatter gradients and gather
weights, the volume of an all-reduce; stage 3 gathers the weights for every forward and every backward pass. Stage 2
keeps no whole gradients, so that without a pipeline it reduces them after every micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.collectives import all_reduce_time, all_to_all_time, gather_time, send_time
from zenith_tune.estimates.compute import tokens_per_rank
from zenith_tune.estimates.routing import busiest_rank
from zenith_tune.estimates.workload import FloatArray, Machine, Number, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

BF16 = 2.0
ALL_TO_ALL = 0.5
"""Share of the network that a plain all-to-all reaches: assumed, not measured."""


def ranks_nearby(ranks: FloatArray, stride: FloatArray, machine: Machine) -> FloatArray:
    """Return how many ranks of a group with this `stride` share a fast domain."""
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
    message = tokens_per_rank(workload, layouts) * workload.hidden * BF16
    group = (tp, ranks_nearby(tp, np.ones_like(tp), machine), machine, coefficients)
    exchange = 2 * gather_time(message, *group)
    if not (layouts.sequence_parallel | (layouts.tp == 1)).all():
        exchange = np.where(layouts.sequence_parallel, exchange, all_reduce_time(message, *group))
    return (4 - 2 * routed_only) * exchange * coefficients.tensor_exposed


def context_time(
    workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients, attention_s: FloatArray
) -> FloatArray:
    """Return the exposed ring of keys and values (Liu et al., Ring Attention, arXiv 2310.01889)."""
    cp, tp = layouts.cp.astype(np.float64), layouts.tp.astype(np.float64)
    message = tokens_per_rank(workload, layouts) * cp * workload.kv_size / tp * BF16
    ring = 3 * gather_time(message, cp, ranks_nearby(cp, tp, machine), machine, coefficients)
    return np.maximum(ring - attention_s, 0.1 * ring)


def expert_exchange_time(
    workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients
) -> FloatArray:
    """Return the exposed exchange of one layer with experts: tokens go out and come back, forward and backward.

    A plain all-to-all overlaps with nothing. Kernels like DeepEP's use the network fully, send a token to a node once
    and overlap with other work: their exposed share is fitted.
    """
    w, c = workload, coefficients
    if not np.any(w.num_moe_layers):
        return np.zeros(len(layouts))
    ep, etp = layouts.ep.astype(np.float64), layouts.etp.astype(np.float64)
    busiest, _ = busiest_rank(w, layouts)  # it receives and sends back the most
    routed = w.top_k * tokens_per_rank(w, layouts) / layouts.tp * w.hidden * BF16 * busiest
    near = ranks_nearby(ep, etp, machine)
    share = np.where(w.fused_dispatch, c.slow_efficiency, ALL_TO_ALL)
    exchange = all_to_all_time(routed, ep, near, machine, c, share)
    split = gather_time(routed * etp, etp, ranks_nearby(etp, np.ones_like(etp), machine), machine, c)
    return 4 * (exchange + split) * np.where(w.fused_dispatch, c.expert_exposed, 1.0)


def handover_time(
    workload: Workload, machine: Machine, layouts: LayoutBatch, coefficients: TimeCoefficients
) -> FloatArray:
    """Return the time of one activation and one gradient between neighbouring stages."""
    tp = layouts.tp.astype(np.float64)
    stride = tp * layouts.cp * layouts.dp
    message = tokens_per_rank(workload, layouts) * workload.hidden * BF16
    message = message / np.where(layouts.sequence_parallel, tp, 1.0)
    is_near = stride * layouts.pp <= machine.fast_domain
    return np.where(layouts.pp > 1, 2 * send_time(message, is_near, machine, coefficients), 0.0)


NEVER_HIDDEN = 0.1
"""Share of the traffic that is always exposed: the first bucket and the last."""


@dataclass(frozen=True, slots=True)
class LocalParams:
    """Number of parameters of one rank of the fullest stage, and of its layers."""

    dense: FloatArray
    experts: FloatArray
    layers: FloatArray


def local_params(workload: Workload, layouts: LayoutBatch, stage_layers: FloatArray) -> LocalParams:
    """Return the parameters of a rank with `stage_layers`; each end of a pipeline has a vocabulary."""
    w, tp = workload, layouts.tp
    moe_share = w.num_moe_layers / w.num_layers
    per_layer = w.attention_params + 2 * w.norm_params
    per_layer = per_layer + (1 - moe_share) * w.dense_mlp_params + moe_share * w.shared_params
    tables = w.embedding_params * np.where(layouts.pp > 1, 1.0, 2 - w.tied)
    experts = moe_share * w.num_experts * w.expert_params / (layouts.ep * layouts.etp)
    return LocalParams((per_layer * stage_layers + tables) / tp, experts * stage_layers, stage_layers)


BUCKET_PARAMS, BUCKET_PARAMS_PER_RANK = 40e6, 1e6
"""Megatron's buckets: 40 million parameters, or a million per data-parallel rank where that is more."""
BUCKETS = {"deepspeed": 5e8, "megatron-deepspeed": 5e8, "hf-accelerate": 12.5e6, "nanotron": np.inf}
"""Parameters per bucket elsewhere: DeepSpeed's reduce_bucket_size, 25 MB of PyTorch's DDP in half precision."""
Collective = Callable[[FloatArray, FloatArray, FloatArray, Machine, TimeCoefficients], FloatArray]


def bucket_params(framework: FrameworkSpec, params: LocalParams, layouts: LayoutBatch) -> FloatArray:
    """Return the parameters exchanged at once: those of a bucket, or of a layer where weights are sharded."""
    ranks = layouts.dp * layouts.cp
    usual = BUCKETS.get(framework.name) or np.maximum(BUCKET_PARAMS, BUCKET_PARAMS_PER_RANK * ranks)
    return np.where(layouts.zero == 3, (params.dense + params.experts) / params.layers, usual)


def exchange_time(
    collective: Collective,
    params: LocalParams,
    bucket: FloatArray,
    machine: Machine,
    layouts: LayoutBatch,
    num_bytes: Number,
    c: TimeCoefficients,
) -> FloatArray:
    """Return the time to exchange `num_bytes` per parameter, bucket by bucket, over the ranks that share it."""
    tp, ranks = layouts.tp.astype(np.float64), (layouts.dp * layouts.cp).astype(np.float64)
    seconds = _in_buckets(collective, params.dense, bucket, num_bytes, ranks, tp, machine, c)
    if params.experts.any():
        held, stride = np.maximum(layouts.edp, 1.0), (layouts.ep * layouts.etp).astype(np.float64)
        seconds = seconds + _in_buckets(collective, params.experts, bucket, num_bytes, held, stride, machine, c)
    return seconds


def _in_buckets(
    collective: Collective,
    params: FloatArray,
    bucket: FloatArray,
    num_bytes: Number,
    ranks: FloatArray,
    stride: FloatArray,
    machine: Machine,
    c: TimeCoefficients,
) -> FloatArray:
    message = np.minimum(bucket, params) * num_bytes
    once = collective(message, ranks, ranks_nearby(ranks, stride, machine), machine, c)
    return once * np.maximum(params / bucket, params > 0)


def data_time(
    params: LocalParams,
    machine: Machine,
    layouts: LayoutBatch,
    framework: FrameworkSpec,
    coefficients: TimeCoefficients,
    pass_s: FloatArray,
    trained_share: Number = 1.0,
) -> FloatArray:
    """Return the exposed time of reducing gradients and gathering weights; `pass_s` is one micro-batch of a stage."""
    c, m = coefficients, layouts.num_micro_batches
    bucket = bucket_params(framework, params, layouts)
    # Bandwidth falls as domains are added, latency does not: bytes are weighted.
    weight = np.maximum(layouts.dp * layouts.cp * layouts.tp / machine.fast_domain, 1.0) ** c.data_decay
    weights = exchange_time(gather_time, params, bucket, machine, layouts, BF16 * weight, c)
    reduced = framework.reduced_gradient_bytes * trained_share
    gradient_bytes, gradients = reduced * weight, weights
    if np.any(reduced != BF16):
        gradients = exchange_time(gather_time, params, bucket, machine, layouts, gradient_bytes, c)
    sums = gradients
    if ((layouts.zero == 0) & (layouts.dp * layouts.cp > 1)).any():
        sums = exchange_time(all_reduce_time, params, bucket, machine, layouts, gradient_bytes, c)
    hidden = c.data_overlap * pass_s * (2 / 3)
    plain = _exposed(sums, hidden)
    sharded = _exposed((gradients + weights) * c.shard_penalty, hidden)
    often = _exposed(gradients, hidden) * m + _exposed(weights, hidden)
    each_pass = _exposed(2 * weights + gradients, c.data_overlap * pass_s) * m
    reduces_often = (layouts.zero == 2) & (layouts.pp == 1)
    return np.select([layouts.zero == 0, layouts.zero == 3, reduces_often], [plain, each_pass, often], sharded)


def _exposed(traffic: FloatArray, hidden: FloatArray) -> FloatArray:
    return np.maximum(traffic - hidden, NEVER_HIDDEN * traffic)
