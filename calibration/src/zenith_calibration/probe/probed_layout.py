"""A layout of which single ranks were run: what was measured, what is modelled, and both combined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zenith_tune.estimates.memory import estimate_memory
from zenith_tune.estimates.time import stage_time
from zenith_tune.estimates.workload import Machine, Workload
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.planner.plan import PRESSURE, PlannedLayout
from zenith_tune.planner.planner import Planner
from zenith_tune.study.trial import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProbe:
    """One stage of a pipeline as it ran alone."""

    stage: int
    rank: int
    outcome: Outcome
    cause: str = ""
    """The reason for its failure, in one line."""
    num_micro_batches: int
    """Micro-batches per step of the probe."""
    step_s: float | None = None
    """Seconds per step of the probe."""
    num_steps: int = 0
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    device_bytes: int | None = None
    gpu: str = ""
    source: str = ""
    """Source of the figures: the hook inside the process, its log, or nvidia-smi."""
    duration_s: float = 0.0
    command: str = ""

    @property
    def ok(self) -> bool:
        return self.outcome is Outcome.OK

    @property
    def peak_bytes(self) -> int | None:
        """The best figure of its peak: allocated, else reserved, else all that the device had in use."""
        return self.allocated_bytes or self.reserved_bytes or self.device_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage as planned."""

    stage: int
    compute_s: float
    """Seconds per step of the work alone."""
    once_s: float
    """Seconds of that which do not grow with micro-batches: the optimizer's step and the fixed cost of a step."""
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
        stage_time(workload, machine, batch_of([at] * len(stages)), job.framework, coefficients, ranks).step_s
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


MEASURED = ("compute", "recompute", "optimizer", "overhead")
"""Parts of a step that every rank does alone."""
SCALED = "bubble"
"""The wait for the pipeline to fill and drain, which is as long as the work of other stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedStage:
    """A stage as it was measured, with the plan for it."""

    probe: StageProbe
    plan: StagePlan
    num_micro_batches: int
    """Micro-batches per step of the job, which may be more than the probe ran."""

    @property
    def compute_s(self) -> float | None:
        """Seconds of work per step of the job; micro-batches that the probe left out take as long as the others."""
        probe = self.probe
        if probe.step_s is None:
            return None
        once_s = min(self.plan.once_s, 0.5 * probe.step_s)
        per_batch_s = (probe.step_s - once_s) / probe.num_micro_batches
        return once_s + per_batch_s * self.num_micro_batches

    @property
    def time_ratio(self) -> float | None:
        """Measured over planned work."""
        return self.compute_s / self.plan.compute_s if self.compute_s is not None else None

    @property
    def planned_bytes(self) -> float:
        """The planner's figure for what was measured: allocated, reserved, or in use on the device."""
        if self.probe.allocated_bytes is not None:
            return self.plan.allocated_bytes
        return self.plan.reserved_bytes if self.probe.reserved_bytes is not None else self.plan.device_bytes

    @property
    def memory_ratio(self) -> float | None:
        return self.probe.peak_bytes / self.planned_bytes if self.probe.peak_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedLayout:
    """A layout's plan and its probed stages."""

    planned: PlannedLayout
    stages: tuple[ProbedStage, ...]

    @property
    def ok(self) -> bool:
        return all(stage.probe.ok for stage in self.stages)

    @property
    def cause(self) -> str:
        """The reason why it did not train, by the first stage that failed."""
        failed = next((stage.probe for stage in self.stages if not stage.probe.ok), None)
        return f"{failed.outcome} on stage {failed.stage}: {failed.cause}" if failed else ""

    @property
    def fullest(self) -> ProbedStage | None:
        """The stage with the highest measured peak."""
        known = [stage for stage in self.stages if stage.probe.peak_bytes]
        return max(known, key=lambda stage: stage.probe.peak_bytes or 0) if known else None

    @property
    def time_ratio(self) -> float | None:
        """Measured over planned work of the slowest stage, which sets the pace."""
        measured = [stage.compute_s for stage in self.stages if stage.compute_s is not None]
        if not measured or len(measured) < len(self.stages):
            return None
        return max(measured) / max(stage.plan.compute_s for stage in self.stages)

    def combined(self) -> PlannedLayout:
        """Return the plan with what was measured in place of its model: work and memory; the rest stays modelled."""
        ratio, fullest, planned = self.time_ratio or 1.0, self.fullest, self.planned
        # Work, and the wait for work, take as long as was measured.
        scaled = {*MEASURED, SCALED, PRESSURE}
        parts = {name: part * (ratio if name in scaled else 1.0) for name, part in planned.time_parts.items()}
        step_s = sum(parts.values())
        factor = step_s / planned.step_s
        low, high = planned.step_interval_s
        memory = planned.memory_bytes * (fullest.memory_ratio or 1.0) if fullest else planned.memory_bytes
        return replace(
            planned,
            step_s=step_s,
            step_interval_s=(low * factor, high * factor),
            time_parts=parts,
            memory_bytes=memory,
            tokens_per_s=planned.tokens_per_s / factor,
            mfu=planned.mfu / factor,
        )


def ranked(probed: Sequence[ProbedLayout]) -> list[ProbedLayout]:
    """Return the layouts in order, the fastest first; those that did not train come last."""
    return sorted(probed, key=lambda each: (not each.ok, each.combined().step_s))
