"""What a preset or a strategy expected of a trial before it ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Hold the step time, and the memory where that was reckoned too."""

    step_s: float
    by: str
    """Whose prediction it is, in a few words."""
    memory_bytes: float | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """What is worth telling beside the step, by name: such as the stages whose pace it has."""
