"""An explanation of one layout: the rules it breaks, its estimate, its stages, and the steps that improve it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.plan import PlannedLayout, changes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Peak memory of one pipeline stage by cause."""

    stage: int
    parts: dict[str, float]

    @property
    def total_bytes(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One change to a layout and its effect."""

    change: str
    planned: PlannedLayout
    gain: float
    """Gain in expected speed, as a fraction; infinite where it fits only with the change."""
    saved_bytes: float
    """Saved memory; negative where it takes more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One layout, explained."""

    layout: Layout
    broken: tuple[str, ...]
    """A line for each broken rule; the estimate is then of a run that the framework would refuse."""
    planned: PlannedLayout | None
    """The estimate, with memory to spare where it does not fit; None where its sizes do not multiply to the GPUs."""
    verdict: str
    """The reason that it does not fit; empty where it fits."""
    stages: tuple[StageMemory, ...]
    steps: tuple[Step, ...]
    """Single changes that improve it, the fastest first."""

    @property
    def fits(self) -> bool:
        """Whether it fits, whatever other rules it breaks."""
        return self.planned is not None and not self.verdict


NUM_FASTER, NUM_SMALLER = 5, 2
LEAST_GAIN = 0.001
"""Relative change of speed below which a change counts as neutral."""
LEAST_SAVING = 0.02
"""The least memory that a neutral change must save, as a share of the GPU's."""
KINDS = ("tp", "pp", "cp", "ep", "etp", "vp", "schedule", "micro_batch", "zero", "recompute", "recompute_layers")


def better_steps(planned: PlannedLayout, neighbours: Iterable[PlannedLayout], risk: float) -> tuple[Step, ...]:
    """Return the changes that make a layout faster, or smaller at the same speed, or make it fit."""
    fitted = planned.oom_probability < risk
    steps = [
        Step(
            change=changes(planned.layout, other.layout),
            planned=other,
            gain=planned.expected_s / other.expected_s - 1 if fitted else math.inf,
            saved_bytes=planned.memory_bytes - other.memory_bytes,
        )
        for other in neighbours
        if other.oom_probability < risk
    ]
    steps.sort(key=lambda step: (-step.gain, step.planned.expected_s, -step.saved_bytes))
    faster = [step for step in steps if step.gain > LEAST_GAIN]
    smaller = [step for step in steps if abs(step.gain) <= LEAST_GAIN]
    chosen = _one_of_each(planned, faster)[:NUM_FASTER]
    kinds = {_kind(planned.layout, step.planned.layout) for step in chosen}
    smaller = [step for step in smaller if step.saved_bytes >= LEAST_SAVING * planned.capacity_bytes]
    smaller.sort(key=lambda step: -step.saved_bytes)
    others = [step for step in smaller if _kind(planned.layout, step.planned.layout) not in kinds]
    return (*chosen, *_one_of_each(planned, others)[:NUM_SMALLER])


def _one_of_each(planned: PlannedLayout, steps: list[Step]) -> list[Step]:
    """Return the first step of each kind, in their order."""
    found: dict[str, Step] = {}
    for step in steps:
        found.setdefault(_kind(planned.layout, step.planned.layout), step)
    return list(found.values())


def _kind(old: Layout, new: Layout) -> str:
    changed = next((name for name in KINDS if getattr(old, name) != getattr(new, name)), "other")
    return "recompute" if changed == "recompute_layers" else changed
