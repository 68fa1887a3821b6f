"""All that is shown of a plan, as plain values: what the page of `zenithtune plan --html` draws."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from zenith_tune import __version__
from zenith_tune.planner.plan import Plan
from zenith_tune.planner.planner import Planner
from zenith_tune.report.layout_digest import best_layout_object
from zenith_tune.report.plan.json import plan_object

if TYPE_CHECKING:
    from zenith_tune.presets.emission import Emission

Json = dict[str, Any]


def plan_digest(
    planner: Planner, plan: Plan, enough_gpus: int | None, *, emission: Emission | None = None, form: str = ""
) -> Json:
    """Return a plan with its best layout in full."""
    best = plan.best[0] if plan.best else None
    emitted = {"format": form, "file_name": emission.file_name, "text": emission.text} if emission else None
    return {
        "kind": "plan",
        "made_by": f"zenithtune {__version__}",
        "title": f"{plan.model.name} on {plan.cluster.name} – plan",
        "place": "",
        "now_s": time.time(),
        **plan_object(plan, enough_gpus),
        "capacity_bytes": float(plan.cluster.gpu.memory_bytes),
        "best_layout": best_layout_object(planner, best) if best else None,
        "emitted": emitted,
    }
