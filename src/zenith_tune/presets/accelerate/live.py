"""What the user's own command ran as, where neither its text nor its file says it: what the script sets in Python.

A field that a script gives to a plugin of Accelerate wins over every file and variable, and one that it leaves out is
read from the environment (utils/dataclasses.py of 1.15.0). So the first kind stays as it is, with a note of what to
change in the script, and the second is tuned by a trial's file, which the launcher turns into that environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.hooked_run import HookedRun
from zenith_tune.presets.accelerate.job import AccelerateJob
from zenith_tune.presets.shared.accelerate_launch import DEEPSPEED_TYPE, FSDP_TYPE, MEGATRON_LM, PLAIN_TYPE
from zenith_tune.presets.shared.live_model import LiveModel

ACCUMULATION = "gas"
"""The name of the accumulation among what a script fixes."""


@dataclass(frozen=True, slots=True)
class LiveField:
    """A field of a plugin: its axis, and its names in the script, in the file and in the hook's lines."""

    axis: str
    argument: str
    key: str
    reported: str


def _megatron(axis: str, argument: str, reported: str | None = None) -> LiveField:
    return LiveField(axis, argument, f"megatron_lm_{argument}", reported or argument)


PLUGINS = {
    MEGATRON_LM: "MegatronLMPlugin",
    DEEPSPEED_TYPE: "DeepSpeedPlugin",
    FSDP_TYPE: "FullyShardedDataParallelPlugin",
}
FIELDS = {
    MEGATRON_LM: (
        _megatron("tp", "tp_degree", "tensor_model_parallel_size"),
        _megatron("pp", "pp_degree", "pipeline_model_parallel_size"),
        _megatron("cp", "context_parallel_size"),
        _megatron("ep", "expert_model_parallel_size"),
        _megatron("etp", "expert_tensor_parallel_size"),
        _megatron("sp", "sequence_parallelism", "sequence_parallel"),
        _megatron("zero", "use_distributed_optimizer"),
        _megatron("recompute", "recompute_granularity"),
        _megatron("recompute", "recompute_method"),
        _megatron("recompute", "recompute_num_layers"),
        _megatron(ACCUMULATION, "num_micro_batches"),
    ),
    DEEPSPEED_TYPE: (
        LiveField("stage", "zero_stage", "zero_stage", "zero_stage"),
        LiveField("offload_optimizer", *["offload_optimizer_device"] * 3),
        LiveField("offload_param", *["offload_param_device"] * 3),
        LiveField(ACCUMULATION, *["gradient_accumulation_steps"] * 3),
    ),
    FSDP_TYPE: (
        LiveField("reshard", "reshard_after_forward", "fsdp_reshard_after_forward", "reshard_after_forward"),
        LiveField(
            "checkpointing", "activation_checkpointing", "fsdp_activation_checkpointing", "activation_checkpointing"
        ),
        LiveField("offload", "cpu_offload", "fsdp_offload_params", "offload_params"),
        LiveField("version", "fsdp_version", "fsdp_version", "fsdp_version"),
    ),
}
"""What is tuned of each plugin."""
WHOLE_CONFIG = "hf_ds_config"
"""The argument by which a script gives DeepSpeed all of its configuration."""


def live_job(job: AccelerateJob, run: HookedRun) -> AccelerateJob:
    """Return the job with the backend, the values and the accumulation that it ran with."""
    if not run.reports:
        return job
    kind = str(run.reports[0].get("type")).upper()
    backend = kind if job.backend == PLAIN_TYPE and kind in PLUGINS else job.backend
    fixed = {**_fixed_of_plugin(backend, run.given), **_fixed_accumulation(job, run.given)}
    accumulation = run.accumulation or job.own_accumulation
    _refuse_other_batch(job, run, accumulation)
    settings = job.settings
    if backend != job.backend:
        settings = settings.having({"distributed_type": backend})
    if backend != job.backend or fixed:
        reported, fields = run.settings, FIELDS.get(backend, ())
        settings = settings.having({each.key: reported[each.reported] for each in fields if each.reported in reported})
    return replace(
        job,
        backend=backend,
        settings=settings,
        own_accumulation=accumulation,
        own_micro_batch=job.own_micro_batch or _micro_batch(job, run),
        seq_len=job.seq_len or run.seq_len,
        live_precision=None if run.precision == job.precision else run.precision,
        live_gpu=run.gpu,
        fixed=fixed,
    )


def live_notes(before: AccelerateJob, after: AccelerateJob) -> list[str]:
    """Return what was learnt of the job, one line each; nothing where its text and file said it all."""
    notes = []
    if after.backend != before.backend:
        notes.append(
            f"the script makes a {PLUGINS[after.backend]}: its axes are searched, each by the trial's own file"
        )
    if after.own_accumulation != before.own_accumulation:
        notes.append(
            f"your command accumulates {after.own_accumulation} micro-batches for an update: trials keep that batch"
        )
    for axis, argument in after.fixed.items():
        change = "give it by an option that gas_option names" if axis == ACCUMULATION else "leave it out there"
        notes.append(f"{axis} stays as it is, because the script gives {argument}: {change} to have it searched")
    return notes


def _fixed_of_plugin(backend: str, given: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    plugin = PLUGINS.get(backend, "")
    named = given.get(plugin, {})
    fields = FIELDS.get(backend, ())
    if WHOLE_CONFIG in named:
        return {each.axis: f"{plugin}({WHOLE_CONFIG}=...)" for each in fields}
    return {each.axis: f"{plugin}({each.argument}={named[each.argument]})" for each in fields if each.argument in named}


def _fixed_accumulation(job: AccelerateJob, given: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the accumulation where the script gives a plugin for it, which no variable changes."""
    name = "gradient_accumulation_plugin"
    is_by_plugin = name in given.get("Accelerator", {}) and not job.sets_accumulation_by_option
    return {ACCUMULATION: f"Accelerator({name}=...)"} if is_by_plugin else {}


def _micro_batch(job: AccelerateJob, run: HookedRun) -> int | None:
    """Return the samples of a pass, where a given batch is none other than these make."""
    if run.model is None or job.given_batch is not None:
        return None
    of_megatron = run.settings.get("micro_batch_size")  # whose passes are of all micro-batches of an update
    live = LiveModel.of(run.model)
    return of_megatron if type(of_megatron) is int else live.micro_batch if live else None


def _refuse_other_batch(job: AccelerateJob, run: HookedRun, accumulation: int) -> None:
    """Refuse a batch that was given and is not the one that the user's own command trains."""
    trained = run.samples
    if job.given_batch is None or trained is None or job.own_micro_batch is None or trained == job.given_batch:
        return
    if job.given_batch == job.own_micro_batch * accumulation * job.num_gpus:  # the loader does not tell of all ranks
        return
    problem = f"gbs is given as {job.given_batch}, but your own command trains {trained} samples for an update"
    raise UsageError(problem, hint=f"leave gbs out, or give gbs={trained}")
