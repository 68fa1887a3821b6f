"""What a plan needs of a job that trains with DeepSpeed: its model, its machines and its configuration."""

from __future__ import annotations

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.errors import UsageError
from zenith_tune.presets.deepspeed.job import SEQUENCE_OPTIONS, DeepSpeedJob
from zenith_tune.presets.subject import job_cluster
from zenith_tune.zero.zero_subject import ZeroSubject


def deepspeed_subject(job: DeepSpeedJob, cluster: str | None, topology: str | None = None) -> ZeroSubject:
    """Return model, cluster, job and configuration, or raise UsageError with what is missing and how to give it."""
    # Not at the top: the catalogs are loaded only where a plan is made.
    from zenith_tune.describe.framework_catalog import load_framework
    from zenith_tune.describe.model_catalog import load_model

    if job.model is None:
        law = "the model is not known, because the command names none by --model_name_or_path"
        raise UsageError(f"{law}: give --args model=NAME, a Hugging Face id or the path of a config.json")
    if job.seq_len is None:
        options = ", ".join(option.replace("-", "_").replace("__", "--") for option in SEQUENCE_OPTIONS[:3])
        raise UsageError(f"the command has no {options} or the like: give --args seq=2048")
    return ZeroSubject(
        model=load_model(job.model),
        cluster=job_cluster(cluster, job.num_gpus, topology),
        job=JobSpec(seq_len=job.seq_len, framework=load_framework("deepspeed"), precision=job.precision),
        config=job.config,
        num_ranks=job.num_ranks,
        model_ranks=job.num_gpus // job.num_ranks,
        recomputes=job.recomputes,
    )
