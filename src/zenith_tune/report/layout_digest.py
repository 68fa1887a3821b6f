"""One planned layout in full, as plain values: the memory of its stages, and its pipeline over a step."""

from __future__ import annotations

from typing import Any

from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.planner.pipeline_timeline import PipelineTimeline, pipeline_timeline
from zenith_tune.planner.planner import Planner
from zenith_tune.planning.planned_layout import PlannedLayout

Json = dict[str, Any]


def best_layout_object(planner: Planner, planned: PlannedLayout) -> Json:
    """Return the stages and the timeline of a layout."""
    subject = PlanSubject(model=planner.model, cluster=planner.cluster, job=planner.job)
    timeline = pipeline_timeline(subject, planner.calibration, planned)
    return {
        "name": planned.name,
        "step_s": planned.step_s,
        "time_parts_s": planned.time_parts,
        "stages": [{"stage": stage.stage, "parts": stage.parts} for stage in planner.stages(planned.layout)],
        "timeline": _timeline_object(timeline) if timeline else None,
    }


def _timeline_object(timeline: PipelineTimeline) -> Json:
    """Return a timeline; each bar as stage, chunk, micro-batch, whether it is forward, start and end."""
    bars = [
        [bar.stage, bar.chunk, bar.micro_batch, int(bar.is_forward), _rounded(bar.start_s), _rounded(bar.end_s)]
        for bar in timeline.bars
    ]
    return {
        "num_stages": timeline.num_stages,
        "num_chunks": timeline.num_chunks,
        "num_micro_batches": timeline.num_micro_batches,
        "shown_micro_batches": timeline.shown_micro_batches,
        "tail_s": timeline.tail_s,
        "idle_share": timeline.idle_share,
        "bars": bars,
    }


def _rounded(seconds: float) -> float:
    """Cut what no screen shows, so that thousands of bars stay small."""
    return float(f"{seconds:.6g}")
