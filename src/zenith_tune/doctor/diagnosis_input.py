"""A run to be diagnosed: its layout, what was measured of it, and the planner that estimates others."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.doctor.diagnosed_run import Measured, RunOrigin
from zenith_tune.errors import UsageError
from zenith_tune.estimates.memory_risk import slowdown
from zenith_tune.layouts.layout import Layout, layout_name
from zenith_tune.layouts.rules import broken_rules
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.limits import RISK
from zenith_tune.planner.neighbours import is_inside, neighbours
from zenith_tune.planner.plan import PlannedLayout, changes
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.formats import writable
from zenith_tune.units import format_bytes

ROOM = 0.9
"""Most of a GPU that a change may need where the run ran out although the plan had room: its error is not known."""
MOST_FULL = 1.05
"""Most of the GPU's memory that a run may have reserved: boards of one kind differ a little."""
MOST_APART = 1.1
"""Largest ratio of a reported memory to the GPU's own: error correction alone takes some percent."""
LEAST_GAIN = 0.02
"""Least gain of an advised change: less is within the error of a plan."""
COUNTS = ("num_gpus", "tp", "pp", "cp", "ep", "etp", "vp", "micro_batch", "global_batch")
WORLD_RULES = ("world", "expert_world", "batch")
"""Rules that must hold for an estimate."""
MODEL_RULES = ("heads", "query_groups", "ffn", "experts", "expert_tensor")
"""Rules that no run of the model can break: a run that breaks them is of another model."""


def _refuse_memory(cluster: ClusterSpec, measured: Measured) -> None:
    """Refuse a measured memory that the named GPU cannot have: the run was on another."""
    peak, reported, memory = measured.peak_bytes, measured.capacity_bytes, cluster.gpu.memory_bytes
    what = None
    if peak is not None and peak > memory * MOST_FULL:
        what = f"reserved {format_bytes(peak)} on a GPU"
    elif reported is not None and not 1 / MOST_APART < reported / memory < MOST_APART:
        what = f"says that its GPU has {format_bytes(reported)}"
    if what is not None:
        problem = f"the run {what}, but one of {cluster.name} has {format_bytes(memory)}"
        raise UsageError(problem, hint="name the --cluster that it ran on")


@dataclass(frozen=True, kw_only=True)
class DiagnosisInput:
    """A run with its estimate, and the planner that estimates changes of it."""

    planner: Planner
    layout: Layout
    planned: PlannedLayout
    measured: Measured = field(default_factory=Measured)
    risk: float = RISK
    recompute_modules: tuple[str, ...] = ()
    """Modules of selective recomputation; empty: the core of attention."""
    origin: RunOrigin = field(default_factory=RunOrigin)

    @classmethod
    def of(
        cls,
        planner: Planner,
        layout: Layout,
        *,
        measured: Measured | None = None,
        risk: float = RISK,
        recompute_modules: tuple[str, ...] = (),
        origin: RunOrigin | None = None,
    ) -> Self:
        """Estimate a run; a layout that does not fit its GPUs or its batch is refused."""
        for name in COUNTS:
            if type(value := getattr(layout, name)) is not int or value < 1:
                problem = f"the run cannot be estimated, because {name} must be a whole number from 1, but is {value!r}"
                raise UsageError(f"{problem}: correct it")
        for rule, reason in broken_rules(planner.model, planner.job, layout):
            if rule.name in WORLD_RULES:
                problem = f"the run cannot be estimated, because {reason}"
                raise UsageError(problem, hint="give the GPUs and the batch that it has")
            if rule.name in MODEL_RULES:
                problem = f"{planner.model.name} cannot run as {layout_name(layout)}, because {reason}"
                raise UsageError(problem, hint="give the model that was trained, or correct the layout")
        measured = measured or Measured()
        _refuse_memory(planner.cluster, measured)
        return cls(
            planner=planner,
            layout=layout,
            planned=planner.evaluate([layout])[0],
            measured=measured,
            risk=risk,
            recompute_modules=recompute_modules,
            origin=origin or RunOrigin(),
        )

    @property
    def cluster(self) -> ClusterSpec:
        return self.planner.cluster

    @property
    def space(self) -> SearchSpace:
        """Layouts that the framework can be given, including the run's own."""
        space = writable(SearchSpace.named("all"), self.origin.emit, self.planner.job.framework.name)
        pinned = {name: size for name, size in space.pinned.items() if getattr(self.layout, name) == size}
        own = (self.layout.recompute,) if self.layout.recompute not in space.recompute else ()
        return replace(space, pinned=pinned, recompute=(*space.recompute, *own))

    @property
    def trains(self) -> bool:
        """Whether the run fits into memory: it was measured, or is predicted to."""
        if self.measured.out_of_memory:
            return False
        return self.measured.step_s is not None or self.planned.oom_probability < self.risk

    @property
    def memory_ratio(self) -> float:
        """Memory of the fullest GPU, measured or shown by running out, over the planned one."""
        return self.device_bytes / self.planned.memory_bytes

    @property
    def device_bytes(self) -> float:
        """Bytes in use on the fullest GPU: measured, all where it ran out, else planned."""
        peak, planned = self.measured.peak_bytes, self.planned
        if self.measured.out_of_memory:
            return max(planned.memory_bytes, planned.capacity_bytes)
        if peak is None:
            return planned.memory_bytes
        return min(peak + self.planner.calibration.memory.context_bytes, planned.capacity_bytes)

    def step_s(self, planned: PlannedLayout) -> float:
        """Return the step time of a layout, its memory corrected as that of the run was."""
        return planned.roomy_s * self.slowdown(planned.memory_bytes * self.memory_ratio)

    def likely_s(self, planned: PlannedLayout) -> float:
        """Return the step time of a layout, if its plan is as far off as that of the run was."""
        measured_s = self.measured.step_s
        return self.step_s(planned) * (measured_s / self.step_s(self.planned) if measured_s else 1.0)

    def slowdown(self, device_bytes: float) -> float:
        """Return how much longer a step takes with so little free memory."""
        planner = self.planner
        coefficients = planner.calibration.time.coefficients_for(
            gpu=self.cluster.gpu.name, precision=planner.job.precision, framework=planner.job.framework.name
        )
        found = slowdown(np.array([device_bytes]), float(self.cluster.gpu.memory_bytes), coefficients.thrash)
        return float(found[0])

    def gain(self, other: PlannedLayout) -> float:
        """Return the relative gain in tokens per second of another layout."""
        samples = other.layout.global_batch / self.layout.global_batch
        return samples * self.step_s(self.planned) / self.step_s(other) - 1

    def legal(self, layouts: Iterable[Layout]) -> list[PlannedLayout]:
        """Return the estimates of layouts that the framework accepts, without those that were run."""
        model, job = self.planner.model, self.planner.job
        known = self.origin.tried | {self.layout}
        kept = [layout for layout in dict.fromkeys(layouts) if layout not in known]
        runnable = [layout for layout in kept if is_inside(self.space, model, layout)]
        return self.planner.evaluate([layout for layout in runnable if not broken_rules(model, job, layout)])

    def refusal(self, layout: Layout) -> str | None:
        """Return why the framework refuses a layout, or None."""
        broken = broken_rules(self.planner.model, self.planner.job, layout)
        return broken[0][1] if broken else None

    def is_within_limit(self, planned: PlannedLayout) -> bool:
        """Tell whether the predicted reservation is within the limit of the run's study."""
        limit = self.origin.memory_limit_bytes
        reserved = planned.memory_bytes * self.memory_ratio - self.planner.calibration.memory.context_bytes
        return limit is None or reserved <= limit

    def fits(self, planned: PlannedLayout) -> bool:
        """Tell whether a layout is predicted to fit, its memory corrected as that of the run was."""
        if planned.oom_probability >= self.risk or not self.is_within_limit(planned):
            return False
        is_out = self.measured.out_of_memory
        if self.measured.step_s is not None and not is_out and planned.memory_bytes <= self.planned.memory_bytes:
            return True  # it needs no more than a run that went well
        # Only a plan that had room for a run out of memory is off by an unknown amount.
        had_room = is_out and self.planned.memory_bytes < self.planned.capacity_bytes
        needed = planned.memory_bytes * max(self.memory_ratio, 1.0) / (ROOM if had_room else 1.0)
        return needed < planned.capacity_bytes

    def fitting(self, layouts: Iterable[Layout]) -> list[PlannedLayout]:
        """Return the estimates of layouts that are legal, fit, and may be tried by a study of the run."""
        return [planned for planned in self.legal(layouts) if self.is_tried(planned.layout) and self.fits(planned)]

    def is_tried(self, layout: Layout) -> bool:
        """Tell whether a study may try a layout; another global batch is not a matter of a study."""
        return layout.global_batch != self.layout.global_batch or self.origin.tries(layout)

    @functools.cached_property
    def neighbours(self) -> list[PlannedLayout]:
        """The layouts one change away that fit."""
        space = self.space.tensor_within(max(self.cluster.fast_domain, self.layout.tp))
        return self.fitting(neighbours(self.planner.model, self.planner.job, self.layout, space))

    def worthwhile(self, planned: Iterable[PlannedLayout], *, least_gain: float = LEAST_GAIN) -> PlannedLayout | None:
        """Return the layout of the most tokens per second, where it gains enough to be advised."""
        best = max(planned, key=self.gain, default=None)
        return best if best is not None and self.gain(best) >= least_gain else None

    def fastest(self, layouts: Iterable[Layout]) -> PlannedLayout | None:
        """Return the fastest layout that is legal, fits and gains enough to be advised."""
        return self.worthwhile(self.fitting(layouts))

    def share(self, part: str) -> float:
        """Return a part's share of the planned step."""
        return self.planned.time_parts[part] / self.planned.step_s

    def advise(
        self,
        name: str,
        better: PlannedLayout | None,
        number: float,
        unit: str,
        finding: str,
        *,
        caution: str = "",
        command: str = "",
    ) -> Advice | None:
        """Return the advice to change to a better layout; None where there is none."""
        if better is None:
            return None
        return Advice(
            name=name,
            number=number,
            unit=unit,
            finding=finding,
            change=changes(self.layout, better.layout),
            planned=better,
            gain=self.gain(better),
            caution=caution,
            command=command,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A finding, and the change that helps by the planner's estimate."""

    name: str
    """The kind of advice, for programs."""
    number: float
    """The figure that the finding rests on."""
    unit: str
    """The unit of that figure."""
    finding: str
    """The finding in one line for people."""
    change: str
    planned: PlannedLayout
    gain: float
    """Relative gain in tokens per second."""
    caution: str = ""
    """Side effects of the change."""
    command: str = ""
    """The command that writes the changed layout for the framework, where it is more than an option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One way to need less memory, and its cost."""

    name: str
    change: str
    """Empty where there is no such layout."""
    planned: PlannedLayout | None
    fits: bool
    cost: float | None
    """Relative increase of the step time over the run with memory to spare; negative: shorter."""
    why_not: str = ""
