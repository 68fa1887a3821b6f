"""All that is known of one layout: the rules it breaks, its estimate, its stages, and the steps that better it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.estimates.memory import estimate_memory
from zenith_tune.estimates.workload import Workload
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.planner.plan import PlannedLayout, changes


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Hold the peak memory of one pipeline stage by cause."""

    stage: int
    parts: dict[str, float]

    @property
    def total_bytes(self) -> float:
        """All of it."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Hold one change to a layout and what it brings."""

    change: str
    planned: PlannedLayout
    gain: float
    """How much more speed, as a fraction, with the risk counted; infinite where it fits only now."""
    saved_bytes: float
    """Memory that it saves; negative where it takes more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Hold one layout, explained."""

    layout: Layout
    broken: tuple[str, ...]
    """A line for each rule that it breaks; the estimate is then of a run that the framework would refuse."""
    planned: PlannedLayout | None
    """None where its sizes do not even multiply to the GPUs; with room where it does not fit."""
    verdict: str
    """What keeps it from fitting; nothing where it fits."""
    stages: tuple[StageMemory, ...]
    steps: tuple[Step, ...]
    """Single changes that better it, the fastest first."""

    @property
    def fits(self) -> bool:
        """Whether it is taken to fit, whatever other rules it breaks."""
        return self.planned is not None and not self.verdict


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
    steps.sort(key=lambda step: (-step.gain, step.planned.expected_s, -step.saved_bytes))
    faster = [step for step in steps if step.gain > LEAST_GAIN]
    smaller = [step for step in steps if abs(step.gain) <= LEAST_GAIN and _saves(step)]
    chosen = _one_of_each(planned, faster)[:NUM_FASTER]
    kinds = {_kind(planned.layout, step.planned.layout) for step in chosen}
    others = sorted(smaller, key=lambda step: -step.saved_bytes)
    others = [step for step in others if _kind(planned.layout, step.planned.layout) not in kinds]
    return (*chosen, *_one_of_each(planned, others)[:NUM_SMALLER])


def _step(planned: PlannedLayout, other: PlannedLayout, fitted: bool) -> Step:
    gain = planned.expected_s / other.expected_s - 1 if fitted else math.inf
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


def stage_memory(model: ModelSpec, job: JobSpec, layout: Layout, calibration: Calibration) -> tuple[StageMemory, ...]:
    """Return what each stage holds at its peak."""
    ranks = np.arange(layout.pp, dtype=np.float64)
    layouts = batch_of([layout] * layout.pp)
    found = estimate_memory(Workload.of(model, job), layouts, job.framework, calibration.memory, ranks)
    parts = [{name: float(part[rank]) for name, part in found.parts.items()} for rank in range(layout.pp)]
    return tuple(StageMemory(stage=rank, parts=part) for rank, part in enumerate(parts))
