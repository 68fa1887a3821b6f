"""What planning gives back: ranked layouts, what was dropped and why, and what nearly made it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.axes import Cut
from zenith_tune.planning.planned_layout import PlannedLayout


class Obstacle(StrEnum):
    """What keeps a faster layout from being chosen."""

    MEMORY = "memory"
    BATCH = "batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """Hold a layout that would be faster than the best, and why it is not chosen."""

    planned: PlannedLayout
    obstacle: Obstacle
    gain: float
    """How much more speed than the best layout's, as a fraction; infinite where nothing fits."""
    reason: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Hold the layouts of one job, the best first."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
    global_batch: int
    risk: float
    """A layout is taken to fit if its probability of running out of memory is below this."""
    best: tuple[PlannedLayout, ...]
    near_misses: tuple[NearMiss, ...]
    front: tuple[PlannedLayout, ...]
    """Layouts that no other beats in both time and memory, the fastest first."""
    num_considered: int
    num_not_fitting: int
    cuts: tuple[Cut, ...]
    left_out: tuple[str, ...]
    """Choices that were not tried, with the reason."""

    @property
    def num_fitting(self) -> int:
        """Layouts that fit."""
        return self.num_considered - self.num_not_fitting
