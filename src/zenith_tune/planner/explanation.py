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
    saved_bytes: float
    """Memory that it saves; negative where it takes more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Hold one layout, explained."""

    layout: Layout
    broken: tuple[str, ...]
    """The rules that it breaks, in words; the estimate is then of a run that the framework would refuse."""
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
