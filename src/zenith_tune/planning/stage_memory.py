"""The memory of each stage of a pipeline, for one layout."""

from __future__ import annotations

import numpy as np

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimate.calibration import Calibration
from zenith_tune.estimate.memory import estimate_memory
from zenith_tune.estimate.workload import Workload
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_rows import batch_of
from zenith_tune.planner.explanation import StageMemory


def stage_memory(model: ModelSpec, job: JobSpec, layout: Layout, calibration: Calibration) -> tuple[StageMemory, ...]:
    """Return what each stage holds at its peak."""
    ranks = np.arange(layout.pp, dtype=np.float64)
    layouts = batch_of([layout] * layout.pp)
    found = estimate_memory(Workload.of(model, job), layouts, job.framework, calibration.memory, ranks)
    parts = [{name: float(part[rank]) for name, part in found.parts.items()} for rank in range(layout.pp)]
    return tuple(StageMemory(stage=rank, parts=part) for rank, part in enumerate(parts))
