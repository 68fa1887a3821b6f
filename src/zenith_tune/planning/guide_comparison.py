"""The guide's layout beside the planner's, both estimated by the planner."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.planner.plan import Plan
from zenith_tune.planner.size_guide import SizeGuide
from zenith_tune.planning.changes import changes
from zenith_tune.planning.planned_layout import CAUSES, PlannedLayout
from zenith_tune.units import format_seconds

LEAST_SHARE = 0.01
"""Parts of a step that differ by less than this share of it are not why a layout is chosen."""
MAX_REASONS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class GuideComparison:
    """Hold both."""

    guide: SizeGuide
    planned: PlannedLayout
    """The guide's layout."""
    broken: tuple[str, ...]
    """The rules that the guide's layout breaks."""
    verdict: str
    """Why the guide's layout does not fit; nothing where it does."""
    plan: Plan

    @property
    def best(self) -> PlannedLayout | None:
        """The planner's own choice; None where nothing fits."""
        return self.plan.best[0] if self.plan.best else None

    @property
    def gain(self) -> float | None:
        """How much faster the planner's choice is, as a fraction; against the guide's with memory to spare."""
        return self.planned.step_s / self.best.step_s - 1 if self.best else None

    @property
    def change(self) -> str:
        """What the planner changes."""
        return changes(self.planned.layout, self.best.layout) if self.best else ""

    @property
    def reasons(self) -> list[str]:
        """Return why the planner chooses otherwise: what must fit, and the parts of a step that differ most."""
        found = [f"because the guide's layout {self.verdict}"] if self.verdict else []
        if self.best is None:
            return found
        old, new = self.planned.time_parts, self.best.time_parts
        differ = sorted(old.keys() | new.keys(), key=lambda name: -abs(old.get(name, 0.0) - new.get(name, 0.0)))
        for name in differ[:MAX_REASONS]:
            before, after = old.get(name, 0.0), new.get(name, 0.0)
            if abs(before - after) >= LEAST_SHARE * self.planned.step_s:
                word = "because" if after < before else "although"
                times = f"{format_seconds(before)} to {format_seconds(after)} a step"
                found.append(f"{word} {CAUSES.get(name, name)} goes from {times}")
        return found
