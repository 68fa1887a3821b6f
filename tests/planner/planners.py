"""Planners that the tests of planning share."""

from __future__ import annotations

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.planner.planner import Planner


def planner(
    model: str = "llama3-8b", cluster: str = "h100x8", *, seq_len: int = 8192, framework: str = "megatron"
) -> Planner:
    machines, runs_on = load_cluster(cluster), load_framework(framework)
    job = JobSpec(seq_len=seq_len, framework=runs_on)
    return Planner(load_model(model), machines, job, default_calibration(runs_on.name))
