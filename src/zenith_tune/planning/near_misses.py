"""Layouts that would be faster than the best one, and what keeps them out."""

from __future__ import annotations

import math
from collections.abc import Callable

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout import Layout
from zenith_tune.planning.changes import changes
from zenith_tune.planning.neighbours import neighbours
from zenith_tune.planning.plan import NearMiss, Obstacle
from zenith_tune.planning.planned_layout import PlannedLayout
from zenith_tune.units import format_bytes, format_gain, format_seconds

LEAST_GAIN = 0.005
"""A near miss must promise more than this, or it is no loss."""

Evaluate = Callable[[list[Layout]], list[PlannedLayout]]


def memory_misses(
    misses: list[PlannedLayout],
    best: PlannedLayout | None,
    *,
    risk: float,
    model: ModelSpec,
    job: JobSpec,
    evaluate: Evaluate,
) -> list[NearMiss]:
    """Return those that memory alone forbids, with what would make each fit."""
    found = []
    for miss in misses:
        gain = math.inf if best is None else best.step_s / miss.roomy_s - 1
        if gain > LEAST_GAIN:
            cure = _memory_cure(miss, evaluate(neighbours(model, job, miss.layout)), risk)
            found.append(_miss(miss, Obstacle.MEMORY, gain, memory_reason(miss), cure))
    return found


def batch_misses(misses: list[PlannedLayout], best: PlannedLayout | None, global_batch: int) -> list[NearMiss]:
    """Return those that another global batch would allow."""
    found = []
    for miss in misses:
        gain = math.inf if best is None else miss.tokens_per_s / best.tokens_per_s - 1
        if gain > LEAST_GAIN:
            batch = miss.layout.global_batch
            reason = f"batch {global_batch} does not go into its ranks and micro-batches"
            found.append(_miss(miss, Obstacle.BATCH, gain, reason, f"take batch {batch}"))
    return found


def memory_reason(miss: PlannedLayout) -> str:
    """Return by how much a layout misses the memory of a GPU."""
    chance = f"{miss.oom_probability:.0%} likely to run out of memory"
    if miss.headroom_bytes >= 0:
        return f"{chance}: only {format_bytes(miss.headroom_bytes)} to spare"
    return f"{chance}: {format_bytes(-miss.headroom_bytes)} over the {format_bytes(miss.capacity_bytes)} of a GPU"


def _memory_cure(miss: PlannedLayout, steps: list[PlannedLayout], risk: float) -> str:
    fitting = [step for step in steps if step.oom_probability < risk]
    more = f"needs {format_bytes(max(-miss.headroom_bytes, 0.0))} more per GPU"
    if not fitting:
        return f"{more}; no single change makes it fit"
    step = min(fitting, key=lambda step: step.step_s)
    cost = format_gain(step.step_s / miss.roomy_s - 1)
    return f"{more}, or {changes(miss.layout, step.layout)}: {format_seconds(step.step_s)} ({cost} time)"


def _miss(planned: PlannedLayout, obstacle: Obstacle, gain: float, reason: str, cure: str) -> NearMiss:
    return NearMiss(planned=planned, obstacle=obstacle, gain=gain, reason=reason, cure=cure)
