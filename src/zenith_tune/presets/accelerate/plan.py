"""What a plan needs of a job that uses Accelerate: its model, its machines and the framework behind the backend."""

from __future__ import annotations

from typing import Any

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.presets.accelerate.backend import Backend
from zenith_tune.presets.accelerate.deepspeed import DeepSpeedBackend
from zenith_tune.presets.accelerate.job import AccelerateJob
from zenith_tune.presets.looked_up import LookedUp
from zenith_tune.presets.subject import job_cluster
from zenith_tune.strategies.zero_progressive.ds_config import DsConfig


def job_model(job: AccelerateJob) -> ModelSpec:
    """Return a job's model, which may have to be asked for over the network, or raise why it is not known."""
    from zenith_tune.describe.model_catalog import load_model

    if job.model is None:
        law = "the model is not known, because the command names none by --model_name_or_path"
        raise UsageError(f"{law}: give --args model=NAME, a Hugging Face id or the path of a config.json")
    return load_model(job.model)


def accelerate_subject(
    backend: Backend, looked_up: LookedUp[ModelSpec], cluster: str | None, topology: str | None = None
) -> PlanSubject:
    """Return model, cluster and job, or raise UsageError with what is missing and how to give it."""
    # Not at the top: the catalogs are loaded only where a plan is made.
    from zenith_tune.describe.framework_catalog import load_framework
    from zenith_tune.zero.zero_subject import ZeroSubject

    job, model = backend.job, looked_up.required()
    if job.seq_len is None:
        raise UsageError("the command has no --max_seq_length, --block_size or the like: give --args seq=2048")
    if backend.own_micro_batch is None:
        raise UsageError("the dataloader's batch size is not known: give --args mbs_option=--batch_size, or gbs=256")
    spec = JobSpec(seq_len=job.seq_len, framework=load_framework(backend.framework), precision=job.precision)
    known: dict[str, Any] = {
        "model": model,
        "cluster": job_cluster(cluster, job.num_gpus, topology),
        "job": spec,
    }
    if not isinstance(backend, DeepSpeedBackend):
        return PlanSubject(**known)
    config = job.ds_config or DsConfig(values={}, source=job.settings.source)
    return ZeroSubject(**known, config=config, num_ranks=backend.own_ranks)
