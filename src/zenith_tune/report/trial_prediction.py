"""What was predicted of a trial, and by whom: its strategy's own word goes before its preset's, and that before a plan.

A strategy learns while it goes, so that what it expected of a trial is nearer than what the planner says on paper.
"""

from __future__ import annotations

from typing import Any

from zenith_tune.planning.planned_layout import PlannedLayout
from zenith_tune.strategies.prediction import Prediction

PLANNER = "the planner"

Json = dict[str, Any]


def predicted_object(planned: PlannedLayout | None, *others: Prediction | None) -> Json | None:
    """Return the first prediction there is, with what the planner knows beside it; None where nobody has any."""
    known = [each for each in others if each is not None]
    if planned is not None:
        known.append(Prediction(step_s=planned.step_s, memory_bytes=planned.memory_bytes, by=PLANNER))
    if not known:
        return None
    memory = next((each for each in known if each.memory_bytes is not None), None)
    return {
        "name": planned.name if planned is not None else None,
        "step_s": known[0].step_s,
        "by": known[0].by,
        "memory_bytes": memory.memory_bytes if memory is not None else None,
        "memory_by": memory.by if memory is not None else None,
        "oom_probability": planned.oom_probability if planned is not None else None,
    }
