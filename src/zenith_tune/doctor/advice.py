"""One thing that slows a run down: its number, what to change, and what that is predicted to bring."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.planning.planned_layout import PlannedLayout

LEAST_GAIN = 0.02
"""A change that promises less speed than this is within what a plan can be wrong by, and not worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Hold a finding and its cure; the gain is always the planner's."""

    name: str
    """What kind it is, for programs."""
    number: float
    """The figure that the finding rests on."""
    unit: str
    """What that figure counts."""
    finding: str
    """The same for people, in one line."""
    change: str
    planned: PlannedLayout
    """The changed layout."""
    gain: float
    """How much more speed, in tokens per second, as a fraction."""
    caution: str = ""
    """What else the change does."""
    command: str = ""
    """What writes the changed layout down for the framework, where the change is more than an option."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Hold one way to need less memory, and what it costs."""

    name: str
    change: str
    """Empty where there is no such layout."""
    planned: PlannedLayout | None
    fits: bool
    cost: float | None
    """How much longer a step takes than the run would with memory to spare, as a fraction; negative: less long."""
    why_not: str = ""
