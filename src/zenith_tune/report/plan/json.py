"""A plan for programs: plain objects with SI units in their names."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING

from zenith_tune import __version__
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.comparison import ClusterComparison
from zenith_tune.planner.cost import TrainingCost
from zenith_tune.planner.explanation import Explanation
from zenith_tune.planner.plan import Plan, PlannedLayout
from zenith_tune.planner.planner import Planner
from zenith_tune.planner.ways_out import WayOut
from zenith_tune.planner.what_if import WhatIf
from zenith_tune.report.trial_digest import best_layout_object, finite
from zenith_tune.study.files import Json

if TYPE_CHECKING:
    from zenith_tune.presets.emission import Emission


def plan_object(
    plan: Plan,
    enough_gpus: int | None = None,
    cost: TrainingCost | None = None,
    ways: Iterable[WayOut] = (),
) -> Json:
    """Return a plan as a plain object; `enough_gpus` is how many would do where nothing fits."""
    return {
        **_situation(plan),
        **({"cost": cost_object(cost)} if cost is not None else {}),
        "risk": plan.risk,
        "num_considered": plan.num_considered,
        "num_fitting": plan.num_fitting,
        "num_not_fitting": plan.num_not_fitting,
        "dropped": [
            {"rule": cut.rule, "law": cut.problem, "count": cut.count, "of": cut.what, "example": cut.example}
            for cut in plan.cuts
        ],
        "left_out": list(plan.left_out),
        "enough_gpus": enough_gpus,
        "ways_out": [way_out_object(way) for way in ways],
        "best": [planned_object(planned) for planned in plan.best],
        "assumptions": list(plan.assumptions),
        "num_tied": plan.num_tied,
        "tied_within": plan.tied_within,
        "near_misses": [
            {
                "obstacle": str(miss.obstacle),
                "gain": finite(miss.gain),
                "reason": miss.reason,
                "hint": miss.hint,
                **planned_object(miss.planned),
            }
            for miss in plan.near_misses
        ],
    }


def cost_object(cost: TrainingCost) -> Json:
    """Return what a training takes as a plain object."""
    hours = {"gpu_hours": cost.gpu_hours, "usd_per_gpu_hour": cost.price, "price_is_public": cost.is_public}
    times = {"seconds": cost.seconds, "interval_90_s": list(cost.interval_s), "days": cost.days}
    return {"tokens": cost.tokens, **times, **hours, "usd": cost.dollars}


def comparison_object(found: ClusterComparison) -> Json:
    """Return the plans on several clusters, each with its best layout alone, as a plain object."""
    pairs = zip(found.plans, found.costs, strict=True)
    return {
        "compared": [
            {
                **_situation(plan),
                "best": planned_object(plan.best[0]) if plan.best else None,
                "cost": cost_object(cost) if cost is not None else None,
            }
            for plan, cost in pairs
        ],
        "fastest": found.fastest.cluster.name if found.fastest else None,
        "cheapest": found.cheapest.cluster.name if found.cheapest else None,
        "cheapest_below_usd_per_gpu_hour": found.cheapest_below,
    }


def planned_object(planned: PlannedLayout) -> Json:
    """Return a layout and its estimate as a plain object."""
    imbalanced: Json = {}
    if planned.balanced_bytes is not None:
        loads = {"busiest_over_mean": planned.busiest_load, "memory_bytes": planned.memory_bytes}
        imbalanced["imbalanced_routing"] = {**loads, "balanced_memory_bytes": planned.balanced_bytes}
    return {
        "name": planned.name,
        "layout": layout_object(planned.layout),
        "step_s": planned.step_s,
        "expected_step_s": planned.expected_s,
        "step_interval_90_s": list(planned.step_interval_s),
        "tokens_per_s": planned.tokens_per_s,
        "tokens_per_s_per_gpu": planned.tokens_per_s_per_gpu,
        "mfu": planned.mfu,
        "bound": planned.bound,
        "time_parts_s": planned.time_parts,
        "memory_bytes": planned.memory_bytes,
        "memory_interval_90_bytes": list(planned.memory_interval_bytes),
        **imbalanced,
        "headroom_bytes": planned.headroom_bytes,
        "oom_probability": planned.oom_probability,
        "memory_parts_bytes": planned.memory_parts,
    }


def layout_object(layout: Layout) -> Json:
    """Return a layout with what follows from its sizes."""
    return {**asdict(layout), "dp": layout.dp, "edp": layout.edp, "num_micro_batches": layout.num_micro_batches}


def explanation_object(explanation: Explanation, cost: TrainingCost | None = None) -> Json:
    """Return an explained layout as a plain object."""
    return {
        "layout": layout_object(explanation.layout) if explanation.planned else asdict(explanation.layout),
        "broken_rules": list(explanation.broken),
        "fits": explanation.fits,
        "verdict": explanation.verdict,
        **({"cost": cost_object(cost)} if cost is not None else {}),
        "estimate": planned_object(explanation.planned) if explanation.planned else None,
        "stages": [{"stage": stage.stage, "memory_parts_bytes": stage.parts} for stage in explanation.stages],
        "better": [
            {
                "change": step.change,
                "gain": finite(step.gain),
                "saved_bytes": step.saved_bytes,
                **planned_object(step.planned),
            }
            for step in explanation.steps
        ],
    }


def what_if_object(
    what_if: WhatIf, cost_before: TrainingCost | None = None, cost_after: TrainingCost | None = None
) -> Json:
    """Return two plans and the gain as a plain object."""
    before, after = plan_object(what_if.before, cost=cost_before), plan_object(what_if.after, cost=cost_after)
    return {"what_if": what_if.text, "gain": what_if.gain, "hint": what_if.hint, "before": before, "after": after}


def _situation(plan: Plan) -> Json:
    return {
        "model": plan.model.name,
        "num_params": plan.model.num_params,
        "cluster": plan.cluster.name,
        "gpu": plan.cluster.gpu.name,
        "num_gpus": plan.cluster.num_gpus,
        "memory_bytes_per_gpu": plan.cluster.gpu.memory_bytes,
        "framework": plan.job.framework.name,
        "precision": plan.job.precision,
        **({"way": plan.job.way} if plan.job.way else {}),
        **({"reference": True} if plan.job.reference else {}),
        **({"dispatcher": plan.job.dispatcher} if plan.model.num_experts else {}),
        "seq_len": plan.job.seq_len,
        "global_batch": plan.global_batch,
    }


def way_out_object(way: WayOut) -> Json:
    """Return one way as a plain object."""
    planned = way.planned
    return {
        "name": way.name,
        "how": way.how,
        "options": way.options,
        "fits": way.fits,
        "memory_bytes": planned.memory_bytes,
        "capacity_bytes": planned.capacity_bytes,
        "oom_probability": planned.oom_probability,
        "recompute": planned.layout.recompute,
        "host_bytes": way.host_bytes,
    }


def plan_digest(
    planner: Planner, plan: Plan, enough_gpus: int | None, *, emission: Emission | None = None, form: str = ""
) -> Json:
    """Return a plan with its best layout in full."""
    best = plan.best[0] if plan.best else None
    return {
        "kind": "plan",
        "made_by": f"zenithtune {__version__}",
        "title": f"{plan.model.name} on {plan.cluster.name} – plan",
        "place": "",
        "now_s": time.time(),
        **plan_object(plan, enough_gpus),
        "capacity_bytes": float(plan.cluster.gpu.memory_bytes),
        "best_layout": best_layout_object(planner, best) if best else None,
        "emitted": {"format": form, **asdict(emission)} if emission else None,
    }
