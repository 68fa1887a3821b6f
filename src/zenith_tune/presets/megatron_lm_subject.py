"""What the planner is told of a Megatron-LM job: its model with the vocabulary, its GPUs and how they are joined."""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.describe.megatron.model import model_name
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron_lm.job import PRESET, MegatronJob
from zenith_tune.presets.subject import job_cluster


def subject_of(job: MegatronJob, cluster: str | None, topology: str | None = None) -> PlanSubject:
    """Return model, cluster and job; `cluster` is this machine unless it is named."""
    machines = job_cluster(cluster, job.start.num_gpus, topology)
    return PlanSubject(model=_with_vocab(job), cluster=machines, job=job.job)


def _with_vocab(job: MegatronJob) -> ModelSpec:
    """Return the model, its vocabulary looked up by the tokenizer's name where the command does not tell it."""
    model = job.model
    assert model is not None
    if model.vocab:
        return model
    tokenizer = job.args.text("--tokenizer-model")
    try:
        if tokenizer:
            known = replace(model, vocab=load_model(tokenizer).vocab)
            return replace(known, name=model_name(known))
    except UsageError:
        pass
    law = f"{PRESET} must know the vocabulary, but only the tokenizer does and it cannot be looked up"
    raise UsageError(f"{law}: give --args vocab=128256 (the tokenizer's own number)")
