"""A trial as it is shown, besides its measurements: the memory that it would have needed, and what was predicted.

A strategy's prediction comes before its preset's, and that before the planner's: a strategy learns as it runs.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from typing import Any

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.evaluators.failures.failures import FailedAllocation, FailureKind
from zenith_tune.planner.pipeline_timeline import PipelineTimeline, pipeline_timeline
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.record.restored_preset import RestoredPreset
from zenith_tune.study.files import Json
from zenith_tune.study.precision import TO_90
from zenith_tune.study.trial import Prediction

PLANNER = "the planner"


def needed_memory(trials: Iterable[Json], capacity_bytes: float | None) -> dict[int, Json]:
    """Return what the trials that ran out of a GPU's memory needed, by number, and whether that is but a bound.

    Where a GPU's memory is not known either, what another trial took and went well with was not enough for these.
    """
    trials = list(trials)
    went_well = max((trial["memory_bytes"] or 0.0 for trial in trials if trial["value"] is not None), default=0.0)
    found = {}
    for trial in trials:
        if trial["state"] == "oom" and trial["failure"] != FailureKind.HOST_OUT_OF_MEMORY:
            failed, predicted = FailedAllocation.of(trial["cause"]), (trial["predicted"] or {}).get("memory_bytes")
            limit = failed.capacity_bytes or capacity_bytes or went_well
            bounds = (limit, failed.tried_bytes, trial["memory_bytes"], predicted)
            needed = failed.needed_bytes
            least = needed or max(bound or 0.0 for bound in bounds)
            found[trial["number"]] = {"bytes": least or None, "is_bound": needed is None}
    return found


def predicted_object(planned: PlannedLayout | None, *others: Prediction | None) -> Json | None:
    """Return the first prediction there is, with the planner's other figures; None where there is none."""
    known = [each for each in others if each is not None]
    if planned is not None:
        known.append(Prediction(step_s=planned.step_s, memory_bytes=planned.memory_bytes, by=PLANNER))
    if not known:
        return None
    first, memory = known[0], next((each for each in known if each.memory_bytes is not None), None)
    within = math.exp(TO_90 * first.error)
    step_interval_s = (first.step_s / within, first.step_s * within) if within > 1 else None
    memory_interval_bytes = None
    if planned is not None and first.by == PLANNER:
        step_interval_s = planned.step_interval_s
    if planned is not None and memory is not None and memory.by == PLANNER:
        memory_interval_bytes = planned.memory_interval_bytes
    return {
        "name": planned.name if planned is not None else None,
        "step_s": first.step_s,
        "step_interval_90_s": step_interval_s,
        "by": first.by,
        "memory_bytes": memory.memory_bytes if memory is not None else None,
        "memory_interval_90_bytes": memory_interval_bytes,
        "memory_by": memory.by if memory is not None else None,
        "oom_probability": planned.oom_probability if planned is not None else None,
    }


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
    bars = []
    for bar in timeline.bars:
        # What no screen shows is cut, so that thousands of bars stay small.
        start_s, end_s = float(f"{bar.start_s:.6g}"), float(f"{bar.end_s:.6g}")
        bars.append([bar.stage, bar.chunk, bar.micro_batch, int(bar.is_forward), start_s, end_s])
    return {
        "num_stages": timeline.num_stages,
        "num_chunks": timeline.num_chunks,
        "num_micro_batches": timeline.num_micro_batches,
        "shown_micro_batches": timeline.shown_micro_batches,
        "tail_s": timeline.tail_s,
        "idle_share": timeline.idle_share,
        "bars": bars,
    }


def finite(value: Any) -> Any:
    """Return a value, or None for a number that JSON has no spelling for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def resolved_args(remade: RestoredPreset) -> dict[str, str]:
    """Return every argument that has a value, spelled as a header spells it; only those given where no preset is."""
    given = remade.header.args
    if remade.preset is None:
        return dict(given)
    named = inspect.signature(PresetRegistry.get(remade.header.preset)).parameters.values()
    silent = (inspect.Parameter.empty, None)
    defaults = {each.name: str(each.default) for each in named if each.default not in silent}
    return {**defaults, **given}
