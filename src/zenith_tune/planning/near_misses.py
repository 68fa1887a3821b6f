"""Layouts that would be faster than the best one, and what keeps them out."""

from __future__ import annotations

import math
from collections.abc import Callable

from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.plan import NearMiss, Obstacle
from zenith_tune.planning.changes import changes
from zenith_tune.planning.planned_layout import PlannedLayout
from zenith_tune.units import GIB, format_bytes, format_gain, format_seconds

LEAST_GAIN = 0.005
"""A near miss must promise more than this, or it is no loss."""


def memory_misses(
    misses: list[PlannedLayout],
    best: PlannedLayout | None,
    *,
    risk: float,
    evaluate_neighbours: Callable[[Layout], list[PlannedLayout]],
) -> list[NearMiss]:
    """Return those that memory alone forbids, with what would make each fit."""
    found = []
    for miss in (miss.with_room() for miss in misses):
        gain = math.inf if best is None else best.step_s / miss.step_s - 1
        if gain > LEAST_GAIN:
            cure = _memory_cure(miss, evaluate_neighbours(miss.layout), risk)
            found.append(_miss(miss, Obstacle.MEMORY, gain, memory_reason(miss), cure))
    return found


def batch_misses(misses: list[PlannedLayout], best: PlannedLayout | None, global_batch: int) -> list[NearMiss]:
    """Return those that another global batch would allow; their gain is in tokens per second."""
    found = []
    for miss in misses:
        gain = math.inf if best is None else miss.tokens_per_s / best.tokens_per_s - 1
        if gain > LEAST_GAIN:
            speed = f"{miss.tokens_per_s_per_gpu:,.0f} tok/s/GPU with batch {miss.layout.global_batch}"
            reason = f"{speed}; {global_batch} does not go into its ranks"
            found.append(_miss(miss, Obstacle.BATCH, gain, reason, f"take batch {miss.layout.global_batch}"))
    return found


def memory_reason(miss: PlannedLayout) -> str:
    """Return by how much a layout misses the memory of a GPU, and what it would do with more."""
    sizes = f"{miss.memory_bytes / GIB:.1f} of {format_bytes(miss.capacity_bytes)}"
    fits_barely = miss.headroom_bytes >= 0
    what = f"{miss.oom_probability:.0%} likely to run out of memory" if fits_barely else "does not fit"
    return f"{what} ({sizes}); would take {format_seconds(miss.roomy_s)} with room"


def _memory_cure(miss: PlannedLayout, steps: list[PlannedLayout], risk: float) -> str:
    fitting = [step for step in steps if step.oom_probability < risk]
    if not fitting:
        return f"{_more(miss)}; no single change makes it fit"
    step = min(fitting, key=lambda step: step.step_s)
    cost = format_gain(step.step_s / miss.roomy_s - 1)
    return f"{_more(miss)}, or {changes(miss.layout, step.layout)}: {format_seconds(step.step_s)} ({cost} time)"


def _more(miss: PlannedLayout) -> str:
    """Return what makes a layout fit as it is: memory where it has too little, else the nerve."""
    if miss.headroom_bytes < 0:
        return f"needs {format_bytes(-miss.headroom_bytes)} more per GPU"
    return f"--risk {min(math.floor(miss.oom_probability * 100) + 1, 100) / 100:g} takes it"


def _miss(planned: PlannedLayout, obstacle: Obstacle, gain: float, reason: str, cure: str) -> NearMiss:
    return NearMiss(planned=planned, obstacle=obstacle, gain=gain, reason=reason, cure=cure)
