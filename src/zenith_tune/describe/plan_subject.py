"""What layouts are planned for: a model, the cluster that trains it, and the job."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.describe.cluster_spec import ClusterSpec
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSubject:
    """Hold all that an estimate needs besides the layout."""

    model: ModelSpec
    cluster: ClusterSpec
    job: JobSpec
