"""The time of a training step: layers, messages between ranks, the pipeline, and what comes once per step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.communication import (
    LocalParams,
    context_time,
    data_time,
    expert_exchange_time,
    handover_time,
    local_params,
    tensor_time,
)
from zenith_tune.estimates.compute import LayerTime, flops_per_weight, head_time, layer_time
from zenith_tune.estimates.stage import Stage, network_waits, stage_loads
from zenith_tune.estimates.workload import FloatArray, Machine, Number, Workload
from zenith_tune.layouts.layout_batch import RECOMPUTE_BLOCK, RECOMPUTE_SELECTIVE, RECOMPUTE_UNIFORM, LayoutBatch
from zenith_tune.layouts.schedules import bubble_share

FORWARD = 1 / 3
"""Share of the forward pass in a layer's time."""
GATHERS = 2
"""The first stage of ZeRO at which the weights of a layer are gathered before use."""
QK_NORM_LAUNCHES = 0.23
"""Share that norms of queries and keys add to a layer's launches (299 operations of a Qwen3 layer, 243 of Llama's)."""
HOST_UPDATE_S = 1.5e-9
"""Seconds in which a node's processors update a parameter that is offloaded, its way there and back included.

LLaMA-7B on eight A800 took 64 / 2.05 s a step with it and 64 / 4.45 s without (ZeRO-3, gist.github.com/chenyaofo
d4cd6a20), 2.5 ns; Qwen2.5-3B on two A100 no more than 3.08 s in all, and 2.38 s with bound cores (DeepSpeed PR 7474),
below 1 ns: either is half of it or twice as much."""
MESSAGES = ("tp", "cp", "ep", "p2p", "dp")
"""Parts of a step that are messages between ranks."""


@dataclass(frozen=True, slots=True)
class TimeEstimate:
    """Seconds of a step and of its parts, which add up to it."""

    step_s: FloatArray
    parts: dict[str, FloatArray]
    host_share: FloatArray
    """Relative change of the step per relative change of the host's speed: 0 where it is GPU-bound, 1 host-bound."""
    expert_share: FloatArray

    @property
    def shares(self) -> FloatArray:
        """Share of the step that each of ERROR_SOURCES decides, one row for each."""
        sent = sum((self.parts[name] for name in MESSAGES if name in self.parts), np.zeros(len(self.step_s)))
        return np.stack([self.host_share, np.clip(sent / self.step_s, 0.0, 1.0), self.expert_share])


def estimate_time(
    workload: Workload,
    machine: Machine,
    layouts: LayoutBatch,
    framework: FrameworkSpec,
    coefficients: TimeCoefficients,
) -> TimeEstimate:
    """Estimate the step time of every layout."""
    w, c = workload, coefficients
    loads = stage_loads(w, layouts, framework)
    layer, host, shares = _layer(w, machine, layouts, framework, c)
    head_s = head_time(w, machine, layouts, c) * (1 + 2 / flops_per_weight(w) * w.reference)
    m, layers_s = layouts.num_micro_batches, sum(layer.values(), start=np.zeros(len(layouts)))
    slowest_s = np.maximum(loads.fullest * layers_s, loads.last * layers_s + head_s)
    head_s = head_s + w.num_mtp_layers * layers_s
    through_s = w.num_layers * layers_s + head_s
    # Every micro-batch passes the slowest stage; the first one also passes all the others (Narayanan et al. 2021), but
    # for what the schedule puts off.
    pipeline_s = m * slowest_s + (through_s - slowest_s) / layouts.vp * bubble_share(layouts, *shares)
    busy = m / layouts.pp
    parts = {name: value * (w.num_layers * busy) for name, value in layer.items()}
    trained_head_s = head_s / (1 + 2 / flops_per_weight(w) * w.reference)
    parts["compute"] = parts["compute"] + trained_head_s * busy
    if "reference" in parts:
        parts["reference"] = parts["reference"] + (head_s - trained_head_s) * busy
    parts["bubble"] = pipeline_s - through_s * busy
    parts["p2p"] = _handovers(w, machine, layouts, framework, c)
    params = local_params(w, layouts, loads.fullest)
    parts["dp"] = data_time(params, machine, layouts, framework, c, slowest_s, w.trained_share)
    parts["optimizer"] = optimizer_time(w, params, machine, layouts, framework, c)
    shapes_s = m * w.new_shapes * c.shape_s
    parts["overhead"] = parts["overhead"] + c.step_overhead_s + shapes_s
    step_s = sum(parts.values(), start=np.zeros(len(layouts)))
    host_share = (host * (pipeline_s - m * head_s / layouts.pp) + shapes_s) / step_s
    return TimeEstimate(step_s, parts, host_share, _expert_share(w, layouts))


def _expert_share(workload: Workload, layouts: LayoutBatch) -> FloatArray:
    return np.broadcast_to(workload.num_moe_layers / workload.num_layers, len(layouts)).astype(np.float64)


def _layer(
    workload: Workload, machine: Machine, layouts: LayoutBatch, framework: FrameworkSpec, c: TimeCoefficients
) -> tuple[dict[str, FloatArray], FloatArray, tuple[FloatArray, FloatArray]]:
    """Return the seconds of an average layer per micro-batch by cause, and the host's share in them.

    Then the shares of the forward pass, with half of the messages, and of the backward pass for trained weights.
    """
    w, moe = workload, workload.num_moe_layers / workload.num_layers
    time = layer_time(w, machine, layouts, c)
    compute = _mean_compute(w, time)
    tensor = tensor_time(w, machine, layouts, c)
    context = context_time(w, machine, layouts, c, time.attention_s)
    experts = moe * expert_exchange_time(w, machine, layouts, c)
    again = recomputed_share(w, layouts)
    recompute = _recompute(w, layouts, framework, again, compute + tensor + experts, time)
    reference = 2 / flops_per_weight(w) * w.reference * (compute + tensor + experts)
    work = compute + tensor + context + experts + recompute + reference
    repeated = _launches_again(w, layouts, c, again + w.reference)
    floor = launch_time(w, machine, layouts, c) * repeated + _shard_launch(layouts, c)
    parts = {"compute": compute, "recompute": recompute, "tp": tensor, "cp": context, "ep": experts}
    if np.any(w.reference):
        parts["reference"] = reference
    joint, host = joint_time(work, floor)
    forward = FORWARD * compute + (tensor + context + experts) / 2
    weights = (1 - 4 / flops_per_weight(w)) * (compute - time.attention_s)
    return {**parts, "overhead": joint - work}, host, (forward / work, weights / work)


def _mean_compute(workload: Workload, time: LayerTime) -> FloatArray:
    """Return the compute seconds of a layer, averaged over those with experts and those without."""
    moe = workload.num_moe_layers / workload.num_layers
    return time.dense_s + moe * (time.expert_s - time.dense_s)


def _recompute(
    w: Workload, layouts: LayoutBatch, framework: FrameworkSpec, again: FloatArray, work: FloatArray, time: LayerTime
) -> FloatArray:
    """Return the seconds of recomputation: of whole layers, or of what selective recomputation drops."""
    selective = layouts.recompute == RECOMPUTE_SELECTIVE
    if framework.selective_share:
        # The output of attention, the costliest to compute, is kept.
        left_out = (1 - framework.selective_share) * (work - time.attention_s)
    else:
        left_out = time.attention_s
    result: FloatArray = 2 / flops_per_weight(w) * again * work + FORWARD * selective * left_out
    return result


def joint_time(work: FloatArray, floor: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the smooth maximum of device and host time, and its relative change per change of `floor`."""
    fourth = np.square(floor * floor)
    both: FloatArray = np.square(work * work) + fourth
    return np.sqrt(np.sqrt(both)), fourth / both


def optimizer_time(
    workload: Workload,
    params: LocalParams,
    machine: Machine,
    layouts: LayoutBatch,
    framework: FrameworkSpec,
    coefficients: TimeCoefficients,
) -> FloatArray:
    """Return the time in which a rank updates its share of the trained weights, or its host those of all its ranks."""
    c = coefficients
    shards = np.where(layouts.zero > 0, layouts.dp * layouts.cp, 1)
    expert_shards = np.where(layouts.zero > 0, np.maximum(layouts.edp, 1), 1)
    updated = workload.trained_share * (params.dense / shards + params.experts / expert_shards)
    if framework.host_bytes:
        return updated * np.minimum(machine.gpus_per_node, machine.num_gpus) * HOST_UPDATE_S
    return updated * c.optimizer_passes / (machine.memory_bytes_per_s * c.memory_efficiency)


def launch_time(workload: Workload, machine: Machine, layouts: LayoutBatch, c: TimeCoefficients) -> FloatArray:
    """Return the least time of a layer and micro-batch: the host's, and waits between ranks."""
    tp = layouts.tp.astype(np.float64)
    spread = (layouts.pp > 1) & (machine.num_gpus > machine.fast_domain) & (layouts.tp > 1)
    outside = np.maximum(tp - machine.fast_domain, 0.0)
    waits = spread * c.stage_wait_s * tp + outside * c.network_wait_s * (1 + 2 * (layouts.pp > 1))
    return _host_time(workload, layouts, c) + waits


def _host_time(workload: Workload, layouts: LayoutBatch, c: TimeCoefficients) -> FloatArray:
    """Return the host's time to launch a layer."""
    moe, experts = workload.num_moe_layers / workload.num_layers, workload.num_experts / layouts.ep
    split = (layouts.tp > 1) * c.tensor_launch_s
    layer_s = c.layer_launch_s * _norm_launches(workload)
    return layer_s + split + moe * (c.expert_launch_s + experts * c.expert_product_s)


def _launches_again(workload: Workload, layouts: LayoutBatch, c: TimeCoefficients, again: FloatArray) -> FloatArray:
    """Return a layer's launches with recomputation over those without."""
    # Selective recomputation was measured to add the same with norms of queries and keys.
    selected = c.launch_selected * (layouts.recompute == RECOMPUTE_SELECTIVE) / _norm_launches(workload)
    result: FloatArray = 1 + c.launch_again * again + selected
    return result


def _norm_launches(workload: Workload) -> Number:
    """Return a layer's launches over those of one without norms of queries and keys."""
    return 1 + QK_NORM_LAUNCHES * workload.qk_norm


def _shard_launch(layouts: LayoutBatch, c: TimeCoefficients) -> FloatArray:
    """Return the host's time to gather and free the weights of a layer, with or without recomputation."""
    gathers = (layouts.zero >= GATHERS) & (layouts.dp * layouts.cp > 1)
    return np.where(gathers, c.shard_launch_s, 0.0)


def recomputed_share(workload: Workload, layouts: LayoutBatch) -> FloatArray:
    """Return the share of layers whose forward pass runs twice."""
    blocks = layouts.recompute_layers * layouts.pp * layouts.vp / workload.num_layers
    full = (layouts.recompute == RECOMPUTE_UNIFORM) * 1.0
    result: FloatArray = full + (layouts.recompute == RECOMPUTE_BLOCK) * np.minimum(blocks, 1.0)
    return result


def _handovers(
    workload: Workload, machine: Machine, layouts: LayoutBatch, framework: FrameworkSpec, c: TimeCoefficients
) -> FloatArray:
    """Return the exposed time of messages between stages; interleaving sends vp times as many, but overlaps them."""
    m, vp = layouts.num_micro_batches, layouts.vp
    slots = np.where(vp > 1, m * vp * c.handover_exposed, m) + layouts.pp - 1
    plain = slots * handover_time(workload, machine, layouts, c)
    return plain + network_waits(layouts, framework) * handover_wait(layouts, c)


def handover_wait(layouts: LayoutBatch, c: TimeCoefficients) -> FloatArray:
    """Return the wait of a step where the network waits, proportional to the messages between nodes.

    A stage at the end of a pipeline has two messages per slot, one inside has four; without a pipeline there are two
    per micro-batch for sharded gradients, four for an all-reduce.
    """
    slots = layouts.num_micro_batches + layouts.pp - 1
    many = (layouts.pp > 2) | ((layouts.pp == 1) & (layouts.zero == 0))
    result: FloatArray = slots * c.handover_wait_s * (2 + 2 * many) * ((layouts.pp > 1) | (layouts.dp > 1))
    return result


def stage_time(
    workload: Workload,
    machine: Machine,
    layouts: LayoutBatch,
    framework: FrameworkSpec,
    coefficients: TimeCoefficients,
    rank: FloatArray,
) -> TimeEstimate:
    """Return the step of pipeline rank `rank` of each layout without messages and waits.

    It includes the layers, the loss on the last stage, the optimizer's step and the host's time for them.
    """
    w, c = workload, coefficients
    stage = Stage.of(w, layouts, framework, rank)
    time, again = layer_time(w, machine, layouts, c), recomputed_share(w, layouts)
    compute = _mean_compute(w, time)
    work = compute + _recompute(w, layouts, framework, again, compute, time)
    floor = _host_time(w, layouts, c) * _launches_again(w, layouts, c, again) + _shard_launch(layouts, c)
    layer_s, host = joint_time(work, floor)
    head_s = stage.is_last * head_time(w, machine, layouts, c)
    num_layers = stage.layers + stage.is_last * stage.mtp_layers
    m, zero = layouts.num_micro_batches, np.zeros(len(layouts))
    parts = {
        "compute": m * (num_layers * work + head_s),
        "overhead": m * num_layers * (layer_s - work) + c.step_overhead_s,
        "optimizer": optimizer_time(w, local_params(w, layouts, stage.layers), machine, layouts, framework, c),
    }
    step_s = sum(parts.values(), start=zero)
    host_share = host * m * num_layers * layer_s / step_s
    return TimeEstimate(step_s, parts, host_share, _expert_share(w, layouts))
