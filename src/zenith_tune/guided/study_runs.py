"""Trials of a guided study as measured runs, for the calibration that the next study begins with."""

from __future__ import annotations

from dataclasses import fields

from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.study.trial import Outcome, Trial


def measured_run(subject: PlanSubject, layouts: LayoutBatch, index: int, trial: Trial) -> MeasuredRun:
    """Return a trial of the layout at `index` as a run."""
    cluster, job = subject.cluster, subject.job
    return MeasuredRun(
        source="studies on this machine",
        framework=job.framework.name,
        stated_framework=job.framework.name,
        model=subject.model,
        model_name=subject.model.name,
        gpu=cluster.gpu.name,
        num_gpus=cluster.num_gpus,
        gpus_per_node=cluster.gpus_per_node,
        cluster=cluster,
        precision=job.precision,
        dispatcher=job.dispatcher,
        seq_len=job.seq_len,
        layout={field.name: getattr(layouts, field.name)[index].item() for field in fields(LayoutBatch)},
        step_s=trial.step_s if trial.ok else None,
        memory_bytes=float(trial.peak_memory_bytes) if trial.peak_memory_bytes else None,
        memory_kind="reserved" if trial.peak_memory_bytes else "",
        out_of_memory=trial.outcome is Outcome.OOM,
    )
