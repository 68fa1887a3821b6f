"""What the planner says of single stages of a layout: the figures that a probe is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zenith_tune.estimate.machine import Machine
from zenith_tune.estimate.memory import estimate_memory
from zenith_tune.estimate.stage_time import stage_time
from zenith_tune.estimate.workload import Workload
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_rows import batch_of
from zenith_tune.planner.planner import Planner


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Hold one stage as planned."""

    stage: int
    compute_s: float
    """Seconds per step of the work alone."""
    once_s: float
    """What of that does not come with each micro-batch: the optimizer's step and what a step costs by itself."""
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float


def stage_plans(planner: Planner, layout: Layout, stages: Sequence[int]) -> list[StagePlan]:
    """Return these stages of a layout as the planner's model has them."""
    job, cluster, calibration = planner.job, planner.cluster, planner.calibration
    workload, machine = Workload.of(planner.model, job), Machine.of(cluster, job.precision)
    layouts, ranks = batch_of([layout] * len(stages)), np.array(stages, dtype=np.float64)
    memory = estimate_memory(workload, layouts, job.framework, calibration.memory, ranks)
    coefficients = calibration.time.coefficients_for(
        gpu=cluster.gpu.name, precision=job.precision, framework=job.framework.name
    )
    whole, one = (
        stage_time(workload, machine, batch_of([at] * len(stages)), job.framework, coefficients, ranks)
        for at in (layout, replace(layout, global_batch=layout.micro_batch * layout.dp))
    )
    others = layout.num_micro_batches - 1
    once = one - (whole - one) / others if others else one * 0.0
    return [
        StagePlan(
            stage=stage,
            compute_s=float(whole[row]),
            once_s=float(once[row]),
            allocated_bytes=float(memory.allocated_bytes[row]),
            reserved_bytes=float(memory.allocated_bytes[row] + memory.parts["reserve"][row]),
            device_bytes=float(memory.device_bytes[row]),
        )
        for row, stage in enumerate(stages)
    ]
