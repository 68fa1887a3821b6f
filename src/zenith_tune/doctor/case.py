"""A run to be diagnosed: its layout, what was measured of it, and the planner that tells what others would do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.doctor.measured import Measured
from zenith_tune.errors import UsageError
from zenith_tune.estimate.memory_pressure import slowdown
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_name import layout_name
from zenith_tune.layouts.layout_rules import broken_rules
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner import Planner
from zenith_tune.planning.planned_layout import PlannedLayout
from zenith_tune.planning.risk import RISK
from zenith_tune.units import format_bytes

ROOM = 0.9
"""What a change may need at most of a GPU that ran out of memory: how much more than all was needed, nobody knows."""
MOST_FULL = 1.05
"""Boards of one kind differ a little in the memory that the driver leaves."""
COUNTS = ("num_gpus", "tp", "pp", "cp", "ep", "etp", "vp", "micro_batch", "global_batch")
WORLD_RULES = ("world", "expert_world", "batch")
"""Rules without which nothing can be reckoned."""
MODEL_RULES = ("heads", "query_groups", "ffn", "experts", "expert_tensor")
"""Rules that no run of the model can break: the one that broke them is of another model."""


def _refuse_peak(cluster: ClusterSpec, measured: Measured | None) -> None:
    """Refuse a peak that the named GPU could not have held: it was measured on another."""
    peak, memory = measured.peak_bytes if measured else None, cluster.gpu.memory_bytes
    if peak is not None and peak > memory * MOST_FULL:
        law = f"the run reserved {format_bytes(peak)} on a GPU, but one of {cluster.name} has {format_bytes(memory)}"
        raise UsageError(f"{law}: name the --cluster that it ran on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Hold a run with its estimate."""

    planner: Planner
    layout: Layout
    planned: PlannedLayout
    measured: Measured = field(default_factory=Measured)
    risk: float = RISK
    space: SearchSpace = field(default_factory=SearchSpace)
    """Where changes are looked for."""
    recompute_modules: tuple[str, ...] = ()
    """What selective recomputation was told to recompute; nothing: the core of attention."""

    @classmethod
    def of(
        cls,
        planner: Planner,
        layout: Layout,
        *,
        measured: Measured | None = None,
        risk: float = RISK,
        recompute_modules: tuple[str, ...] = (),
    ) -> Self:
        """Estimate a run; a layout that does not fit its GPUs or its batch is refused."""
        for name in COUNTS:
            if type(value := getattr(layout, name)) is not int or value < 1:
                law = f"the run cannot be reckoned, because {name} must be a whole number from 1, but is {value!r}"
                raise UsageError(f"{law}: correct it")
        broken = broken_rules(planner.model, planner.job, layout)
        for rule, reason in broken:
            if rule.name in WORLD_RULES:
                raise UsageError(
                    f"the run cannot be reckoned, because {reason}: give the GPUs and the batch that it has"
                )
            if rule.name in MODEL_RULES:
                law = f"{planner.model.name} cannot run as {layout_name(layout)}, because {reason}"
                raise UsageError(f"{law}: give the model that was trained, or correct the layout")
        _refuse_peak(planner.cluster, measured)
        return cls(
            planner=planner,
            layout=layout,
            planned=planner.evaluate([layout])[0],
            measured=measured or Measured(),
            risk=risk,
            space=SearchSpace.named("all"),
            recompute_modules=recompute_modules,
        )

    @property
    def cluster(self) -> ClusterSpec:
        """The machines."""
        return self.planner.cluster

    @property
    def runs(self) -> bool:
        """Whether the run is known to fit, because it was measured, or is taken to."""
        if self.measured.out_of_memory:
            return False
        return self.measured.step_s is not None or self.planned.oom_probability < self.risk

    @property
    def memory_ratio(self) -> float:
        """What was measured, or proven by running out, over what was planned of the fullest GPU's memory."""
        return self.device_bytes / self.planned.memory_bytes

    @property
    def device_bytes(self) -> float:
        """What the fullest GPU holds: measured where it was, at least all where it ran out, else planned."""
        peak, planned = self.measured.peak_bytes, self.planned
        if self.measured.out_of_memory:
            return max(planned.memory_bytes, planned.capacity_bytes)
        if peak is None:
            return planned.memory_bytes
        return min(peak + self.planner.calibration.memory.context_bytes, planned.capacity_bytes)

    def step_s(self, planned: PlannedLayout) -> float:
        """Return the step time of a layout, its memory being off by as much as that of the run was."""
        return planned.roomy_s * self.slowdown(planned.memory_bytes * self.memory_ratio)

    def slowdown(self, device_bytes: float) -> float:
        """Return how much longer a step takes for want of memory."""
        planner = self.planner
        coefficients = planner.calibration.time.coefficients_for(
            gpu=self.cluster.gpu.name, precision=planner.job.precision, framework=planner.job.framework.name
        )
        found = slowdown(np.array([device_bytes]), float(self.cluster.gpu.memory_bytes), coefficients.thrash)
        return float(found[0])

    def gain(self, other: PlannedLayout) -> float:
        """Return how much more tokens per second another layout brings."""
        samples = other.layout.global_batch / self.layout.global_batch
        return samples * self.step_s(self.planned) / self.step_s(other) - 1

    def legal(self, layouts: Iterable[Layout]) -> list[PlannedLayout]:
        """Return the estimates of those that the framework takes, without the run's own."""
        model, job = self.planner.model, self.planner.job
        kept = [layout for layout in dict.fromkeys(layouts) if layout != self.layout]
        return self.planner.evaluate([layout for layout in kept if not broken_rules(model, job, layout)])

    def refusal(self, layout: Layout) -> str | None:
        """Return why the framework does not take a layout, or None where it does."""
        broken = broken_rules(self.planner.model, self.planner.job, layout)
        return broken[0][1] if broken else None

    def fits(self, planned: PlannedLayout) -> bool:
        """Tell whether a layout is taken to fit, its memory being off by as much as that of the run was."""
        needed = planned.memory_bytes * max(self.memory_ratio, 1.0) / (ROOM if self.measured.out_of_memory else 1.0)
        smaller = planned.memory_bytes <= self.planned.memory_bytes and not self.measured.out_of_memory
        if self.measured.step_s is not None and smaller:
            return True  # what needs less than a run that went well goes well
        return planned.oom_probability < self.risk and needed < planned.capacity_bytes

    def fastest(self, layouts: Iterable[Layout]) -> PlannedLayout | None:
        """Return the layout of the most tokens per second among those that are legal and fit."""
        fitting = [planned for planned in self.legal(layouts) if self.fits(planned)]
        return max(fitting, key=self.gain, default=None)
