"""The single changes that better a layout: at most one of each kind, those that make it faster first."""

from __future__ import annotations

import math
from collections.abc import Iterable

from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.explanation import Step
from zenith_tune.planning.changes import changes
from zenith_tune.planning.planned_layout import PlannedLayout

NUM_FASTER, NUM_SMALLER = 5, 2
LEAST_GAIN = 0.001
"""A change that brings less speed than this is taken to cost no time and to bring none."""
LEAST_SAVING = 0.02
"""Memory that a change must save to be worth a line where it brings no speed, as a share of the GPU's."""
KINDS = ("tp", "pp", "cp", "ep", "etp", "vp", "micro_batch", "zero", "recompute", "recompute_layers")


def better_steps(planned: PlannedLayout, neighbours: Iterable[PlannedLayout], risk: float) -> tuple[Step, ...]:
    """Return the changes that make a layout faster, or smaller at no time, or make it fit."""
    fitted = planned.oom_probability < risk
    steps = [_step(planned, other, fitted) for other in neighbours if other.oom_probability < risk]
    steps.sort(key=lambda step: (-step.gain, step.planned.step_s, -step.saved_bytes))
    faster = [step for step in steps if step.gain > LEAST_GAIN]
    smaller = [step for step in steps if abs(step.gain) <= LEAST_GAIN and _saves(step)]
    chosen = _one_of_each(planned, faster)[:NUM_FASTER]
    kinds = {_kind(planned.layout, step.planned.layout) for step in chosen}
    others = sorted(smaller, key=lambda step: -step.saved_bytes)
    others = [step for step in others if _kind(planned.layout, step.planned.layout) not in kinds]
    return (*chosen, *_one_of_each(planned, others)[:NUM_SMALLER])


def _step(planned: PlannedLayout, other: PlannedLayout, fitted: bool) -> Step:
    gain = planned.step_s / other.step_s - 1 if fitted else math.inf
    saved = planned.memory_bytes - other.memory_bytes
    return Step(change=changes(planned.layout, other.layout), planned=other, gain=gain, saved_bytes=saved)


def _saves(step: Step) -> bool:
    return step.saved_bytes >= LEAST_SAVING * step.planned.capacity_bytes


def _one_of_each(planned: PlannedLayout, steps: list[Step]) -> list[Step]:
    """Return the first step of each kind, in their order."""
    found: dict[str, Step] = {}
    for step in steps:
        found.setdefault(_kind(planned.layout, step.planned.layout), step)
    return list(found.values())


def _kind(old: Layout, new: Layout) -> str:
    changed = next((name for name in KINDS if getattr(old, name) != getattr(new, name)), "other")
    return "recompute" if changed == "recompute_layers" else changed
