"""What a plan needs of a job of Megatron-LM or ms-swift, from the preset's arguments and the command itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.errors import CommandError, UsageError
from zenith_tune.evaluators.sequence import SEQUENCE_OPTIONS, sequence_in_command
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.megatron.command import SEQUENCE_PARALLEL, runs_ms_swift
from zenith_tune.presets.megatron.swift import says_false
from zenith_tune.shell import CommandLine
from zenith_tune.study.parameters import Value


def megatron_subject(
    command: str, *, model: str | None, cluster: str | None, n_gpus: int, seq: int | None
) -> PlanSubject:
    """Return model, cluster and job, or raise UsageError with what is missing and how to give it."""
    # Not at the top: the catalogs are loaded only where a plan is made.
    from zenith_tune.describe.cluster_catalog import load_cluster
    from zenith_tune.describe.framework_catalog import load_framework
    from zenith_tune.describe.model_catalog import load_model

    if model is None:
        raise UsageError(
            "the model is not known: give --args model=NAME, a Hugging Face id or the path of a config.json"
        )
    seq_len = seq or sequence_in_command(command)
    if seq_len is None:
        raise UsageError(f"the command has neither {' nor '.join(SEQUENCE_OPTIONS)}: give --args seq=4096")
    machines = load_cluster(cluster or "local")
    if machines.num_gpus != n_gpus:
        law = f"n_gpus must be the GPUs of the cluster, but got n_gpus={n_gpus} and {machines.name} with"
        raise UsageError(f"{law} {machines.num_gpus}: give --args cluster={machines.gpu.name}x{n_gpus}")
    job = JobSpec(seq_len=seq_len, framework=load_framework("megatron"))
    return PlanSubject(model=load_model(model), cluster=machines, job=job)


def batch_notes(command: str, gbs: int) -> list[str]:
    """Return a line where the command itself says another batch: its gain would compare two different jobs."""
    try:
        said = CommandLine(command).get("--global-batch-size")
    except CommandError:
        return []
    if said is None or not said.isdecimal() or int(said) == gbs:
        return []
    return [f"your own command has a global batch of {said} and the trials of {gbs}: the gain compares both"]


def tokens_notes(command: str) -> list[str]:
    """Return a line where samples may be shorter than the sequence, so that tokens/s counts some that are not there."""
    try:
        packing = CommandLine(command).get("--packing")
    except CommandError:
        return []
    if (packing or "").lower() == "true" or not runs_ms_swift(command) or sequence_in_command(command) is None:
        return []
    return ["tokens/s takes every sample for --max_length tokens, of which it has fewer without --packing true"]


def layout_in(command: str, layout: Layout, *, sequence_parallel: bool = False) -> Layout:
    """Return a layout with what the command says of sharding and of sequence parallelism, which a trial may add."""
    try:
        line = CommandLine(command)
        sharded = line.has("--use-distributed-optimizer") or runs_ms_swift(command)  # ms-swift has it by default
        said = line.has(SEQUENCE_PARALLEL) and not says_false(command, SEQUENCE_PARALLEL)
    except CommandError:
        return layout
    sp = layout.tp > 1 and (said or sequence_parallel)
    return replace(layout, zero=int(sharded), sequence_parallel=sp)


def with_recompute(layout: Layout, params: Mapping[str, Value]) -> Layout:
    """Return a layout with the recomputation of a point."""
    if params.get("recompute_granularity") != "full":
        return replace(layout, recompute="selective")
    method, layers = params.get("recompute_method", "uniform"), int(params.get("recompute_num_layers", 1))
    return replace(layout, recompute=f"full/{method}", recompute_layers=layers)
