"""All that is known of one layout: the rules it breaks, its estimate, its stages, and the steps that better it."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.layouts.layout import Layout
from zenith_tune.planning.planned_layout import PlannedLayout


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Hold one layout, explained."""

    layout: Layout
    broken: tuple[str, ...]
    """The rules that it breaks, in words; the estimate is then of a run that the framework would refuse."""
    planned: PlannedLayout | None
    """None where its sizes do not even multiply to the GPUs."""
    stages: tuple[StageMemory, ...]
    steps: tuple[Step, ...]
    """Single changes that make it faster, the best first."""
