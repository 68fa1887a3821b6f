"""Probes that never ran: a plan, and what its stages would have measured."""

from __future__ import annotations

from typing import Any

from tests.planner.planners import planner
from zenith_calibration.probe.fake_rank import probed_micro_batches, probed_stages
from zenith_calibration.probe.probed_layout import ProbedLayout, ProbedStage, StagePlan, StageProbe, stage_plans
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.planner import Planner
from zenith_tune.study.trial import Outcome

PIPELINE = Layout(num_gpus=64, tp=8, pp=4, global_batch=64, zero=1, sequence_parallel=True)


def llama_planner() -> Planner:
    return planner("llama3-70b", "h100x64", seq_len=4096)


def as_planned(
    plan: StagePlan, layout: Layout, *, slower: float = 1.0, fuller: float = 1.0, **changes: Any
) -> ProbedStage:
    """Return a stage whose probe took the planned time and memory, times two factors."""
    num_micro_batches = probed_micro_batches(layout)
    per_batch_s = (slower * plan.compute_s - plan.once_s) / layout.num_micro_batches
    values: dict[str, Any] = {
        "stage": plan.stage,
        "rank": plan.stage * layout.num_gpus // layout.pp,
        "outcome": Outcome.OK,
        "num_micro_batches": num_micro_batches,
        "step_s": plan.once_s + per_batch_s * num_micro_batches,
        "num_steps": 3,
        "allocated_bytes": int(plan.allocated_bytes * fuller),
        "reserved_bytes": int(plan.reserved_bytes * fuller),
        "device_bytes": int(plan.device_bytes * fuller),
        "gpu": "NVIDIA H100",
        "source": "hook",
    }
    return ProbedStage(probe=StageProbe(**values | changes), plan=plan, num_micro_batches=layout.num_micro_batches)


def probed_layout(
    layout: Layout = PIPELINE, *, slower: float = 1.0, fuller: float = 1.0, **changes: Any
) -> ProbedLayout:
    """Return a layout of which every stage took the planned time and memory, times two factors."""
    plans = llama_planner()
    stages = stage_plans(plans, layout, probed_stages(layout.pp))
    return ProbedLayout(
        planned=plans.evaluate([layout])[0],
        stages=tuple(as_planned(plan, layout, slower=slower, fuller=fuller, **changes) for plan in stages),
    )
