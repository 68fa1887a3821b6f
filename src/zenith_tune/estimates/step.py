"""The estimate of a batch of layouts: memory, time and the risk of running out of memory."""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.calibration import Calibration, TimeCoefficients
from zenith_tune.estimates.memory_risk import expected_step, layout_risk, memory_spread, slowdown
from zenith_tune.estimates.time import TimeEstimate, estimate_time
from zenith_tune.estimates.workload import Estimate, Machine, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch


def estimate(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, layouts: LayoutBatch, calibration: Calibration
) -> Estimate:
    """Estimate memory and step time of every layout of one job on one cluster."""
    workload, machine, coefficients = known_numbers(model, cluster, job, calibration)
    capacity = float(cluster.gpu.memory_bytes)
    memory, risk = layout_risk(workload, layouts, job.framework, calibration.memory, capacity)
    time = estimate_time(workload, machine, layouts, job.framework, coefficients)
    longer = slowdown(memory.device_bytes, capacity, coefficients.thrash)
    parts = dict(time.parts)
    parts["memory"] = time.step_s * (longer - 1)
    wider = calibration.time.widening(time.shares)
    return Estimate(
        step_s=time.step_s * longer,
        expected_s=expected_step(time.step_s, risk, coefficients.thrash),
        time_parts=parts,
        memory_bytes=memory.device_bytes,
        memory_parts=memory.parts,
        step_spread=calibration.time.spread * wider,
        level_sd=calibration.time.level_sd(time.shares, cluster.gpu.name),
        memory_spread=memory_spread(memory, calibration.memory),
        oom_probability=risk.oom,
    )


def time_with_room(
    model: ModelSpec,
    cluster: ClusterSpec,
    job: JobSpec,
    layouts: LayoutBatch,
    calibration: Calibration,
    **changed: float,
) -> TimeEstimate:
    """Estimate time alone, as with memory to spare, with `changed` coefficients."""
    workload, machine, coefficients = known_numbers(model, cluster, job, calibration)
    return estimate_time(workload, machine, layouts, job.framework, replace(coefficients, **changed))


def known_numbers(
    model: ModelSpec, cluster: ClusterSpec, job: JobSpec, calibration: Calibration
) -> tuple[Workload, Machine, TimeCoefficients]:
    """Return a job's sizes, its machine's rates and the coefficients of its time, as the formulas take them."""
    coefficients = calibration.time.coefficients_for(
        gpu=cluster.gpu.name, precision=job.precision, framework=job.framework.name
    )
    return Workload.of(model, job), Machine.of(cluster, job.precision), coefficients
