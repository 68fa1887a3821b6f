"""How long one pipeline stage computes in a step, had it never to wait for another rank.

It is what a single rank of a layout does when every message is left out: the layers, the loss on the last stage, the
optimizer's step, and what the host takes for them.
"""

from __future__ import annotations

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.estimate.compute import head_time, layer_time
from zenith_tune.estimate.data_parallel import local_params
from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.estimate.machine import Machine
from zenith_tune.estimate.stage import Stage
from zenith_tune.estimate.time import FORWARD, joint_time, optimizer_time, recomputed_share
from zenith_tune.estimate.time_coefficients import TimeCoefficients
from zenith_tune.estimate.workload import Workload
from zenith_tune.layouts.layout_batch import RECOMPUTE_SELECTIVE, LayoutBatch


def stage_time(
    workload: Workload,
    machine: Machine,
    layouts: LayoutBatch,
    framework: FrameworkSpec,
    coefficients: TimeCoefficients,
    rank: FloatArray,
) -> FloatArray:
    """Return the seconds per step of pipeline rank `rank` of each layout, without any communication."""
    w, c = workload, coefficients
    stage = Stage.of(w, layouts, framework, rank)
    moe = w.num_moe_layers / w.num_layers
    time = layer_time(w, machine, layouts, c)
    compute = time.dense_s + moe * (time.expert_s - time.dense_s)
    again = recomputed_share(w, layouts)
    selective = layouts.recompute == RECOMPUTE_SELECTIVE
    work = compute + FORWARD * (again * compute + selective * time.attention_s)
    experts = w.num_experts / layouts.ep
    launches = c.layer_launch_s + moe * (c.expert_launch_s + experts * c.expert_product_s)
    layer_s = joint_time(work, launches * (1 + FORWARD * again))
    head_s = head_time(w, machine, layouts, c) + stage.mtp_layers * layer_s
    layers_s = stage.layers * layer_s + stage.is_last * head_s
    once = optimizer_time(local_params(w, layouts, stage.layers), machine, layouts, c) + c.step_overhead_s
    result: FloatArray = layouts.num_micro_batches * layers_s + np.asarray(once)
    return result
