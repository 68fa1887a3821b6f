"""What a probe leaves: one JSON file with all that was measured and modelled, for people, programs and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from zenith_tune.calibrate.probed_runs import FILE_NAME
from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.layouts.layout import Layout
from zenith_tune.planning.planned_layout import PlannedLayout
from zenith_tune.probe.probed_layout import ProbedLayout, ProbedStage
from zenith_tune.study.files import write_json

Json = dict[str, Any]


def probe_object(subject: PlanSubject, probed: Sequence[ProbedLayout]) -> Json:
    """Return the job and its probed layouts, in the order given."""
    model, cluster, job = subject.model, subject.cluster, subject.job
    return {
        "framework": job.framework.name,
        "model": asdict(model),
        "gpu": cluster.gpu.name,
        "num_gpus": cluster.num_gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "seq_len": job.seq_len,
        "precision": job.precision,
        "dispatcher": job.dispatcher,
        "layouts": [_layout_object(each) for each in probed],
    }


def write_probe(folder: Path, content: Json) -> Path:
    """Write the file into a probe's folder."""
    write_json(folder / FILE_NAME, content)
    return folder / FILE_NAME


def _layout_object(probed: ProbedLayout) -> Json:
    layout = probed.planned.layout
    return {
        "name": probed.planned.name,
        # What a preset adds to a layout is no part of it.
        "layout": {field.name: getattr(layout, field.name) for field in fields(Layout)},
        "ok": probed.ok,
        "cause": probed.cause,
        "stages": [_stage_object(stage) for stage in probed.stages],
        "planned": _figures(probed.planned),
        "combined": _figures(probed.combined()) if probed.ok else None,
    }


def _stage_object(stage: ProbedStage) -> Json:
    return {
        **asdict(stage.probe),
        "planned": asdict(stage.plan),
        "compute_s": stage.compute_s,
        "time_ratio": stage.time_ratio,
        "memory_ratio": stage.memory_ratio,
    }


def _figures(planned: PlannedLayout) -> Json:
    return {
        "step_s": planned.step_s,
        "time_parts": planned.time_parts,
        "memory_bytes": planned.memory_bytes,
        "tokens_per_s": planned.tokens_per_s,
        "mfu": planned.mfu,
    }
