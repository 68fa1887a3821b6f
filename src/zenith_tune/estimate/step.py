"""One estimate of a batch of layouts: memory, time, and the risk that the one does not hold the other."""

from __future__ import annotations

import numpy as np

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimate.calibration import Calibration
from zenith_tune.estimate.estimate import Estimate, FloatArray
from zenith_tune.estimate.machine import Machine
from zenith_tune.estimate.memory import estimate_memory
from zenith_tune.estimate.memory_risk import oom_probability
from zenith_tune.estimate.time import estimate_time
from zenith_tune.estimate.time_coefficients import TimeCoefficients
from zenith_tune.estimate.workload import Number, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

PRESSURE_WIDTH = 0.01
"""How gradually, as a share of the memory, a step slows down as the memory fills."""


def estimate(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, layouts: LayoutBatch, calibration: Calibration
) -> Estimate:
    """Estimate memory and step time of every layout of one job on one cluster."""
    workload, machine = Workload.of(model, job), Machine.of(cluster, job.precision)
    coefficients = calibration.time.coefficients_for(
        gpu=cluster.gpu.name, precision=job.precision, framework=job.framework.name
    )
    memory = estimate_memory(workload, layouts, job.framework, calibration.memory)
    time = estimate_time(workload, machine, layouts, job.framework, coefficients)
    slowdown = thrash_factor(memory.device_bytes, machine.memory_bytes, coefficients)
    parts = dict(time.parts)
    parts["memory"] = time.step_s * (slowdown - 1)
    size = len(layouts)
    return Estimate(
        step_s=time.step_s * slowdown,
        time_parts=parts,
        memory_bytes=memory.device_bytes,
        memory_parts=memory.parts,
        step_spread=np.full(size, calibration.time.spread),
        memory_spread=np.full(size, calibration.memory.log_spread),
        oom_probability=oom_probability(memory.device_bytes, float(cluster.gpu.memory_bytes), calibration.memory),
    )


def thrash_factor(device_bytes: FloatArray, memory_bytes: Number, c: TimeCoefficients) -> FloatArray:
    """Return how much longer a step takes for want of memory; runs that are almost full are several times slower.

    Measured: a DeepSeek-V3-shaped model on H100 at 79.7 GB of 80 fell from 225 to 33 TFLOP/s (Megatron-LM PR 6311).
    """
    excess = (device_bytes / memory_bytes - c.pressure) / PRESSURE_WIDTH
    return 1 + (c.thrash - 1) / (1 + np.exp(-np.clip(excess, -40, 40)))
