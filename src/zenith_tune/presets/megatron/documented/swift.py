"""The run of ms-swift's `megatron sft` (version 3 or 4) in a command, and how it spells Megatron's options."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.megatron.documented.command import runs_ms_swift, runs_pretrain_script
from zenith_tune.presets.megatron.evaluator import SEQUENCE_OPTIONS, sequence_in_command
from zenith_tune.presets.megatron.options import (
    CHUNKS,
    LOG_INTERVAL,
    PER_CHUNK,
    SEQUENCE_PARALLEL,
    VIRTUAL,
    pipeline_options,
)
from zenith_tune.presets.shared.subject import job_cluster, job_model
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.options import own_words, read_options
from zenith_tune.study.parameters import Value
from zenith_tune.units import whole

RENAMED = {
    "--save-interval": "--save-steps",
    LOG_INTERVAL: "--logging-steps",
    "--train-type": "--tuner-type",
    "--max-epochs": "--num-train-epochs",
}
"""Options of version 3, each with its name in version 4."""
INTERLEAVING = (CHUNKS, PER_CHUNK, VIRTUAL)
"""Every option by which a pipeline is interleaved: ms-swift 4's, version 3's and Megatron-LM's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftVersion:
    """The major version of ms-swift, and the source of that knowledge."""

    major: int
    source: str
    is_certain: bool = True


def swift_version(command: str) -> SwiftVersion:
    """Return the version that a command is written for: by its options, else the installed one, else 4.

    >>> swift_version("megatron sft --save_interval 100").major
    3
    """
    line = ParsedCommand.of(command)
    signs = {3: list(filter(line.has, RENAMED)), 4: list(filter(line.has, RENAMED.values()))}
    if len(signs[3]) != len(signs[4]):
        major = 3 if len(signs[3]) > len(signs[4]) else 4
        return SwiftVersion(major=major, source=f"the command has {_underscored(signs[major][0])}")
    try:
        installed = importlib.metadata.version("ms-swift")
        return SwiftVersion(major=3 if int(installed.partition(".")[0]) <= 3 else 4, source=f"{installed} is installed")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        source = "neither the command nor an installed package says"
        return SwiftVersion(major=4, source=source, is_certain=False)


def log_option(command: str) -> str | None:
    """Return the option by which a command prints every iteration, where it is certain to be known there.

    >>> log_option("megatron sft --save_steps 100"), log_option("python pretrain_gpt.py"), log_option("python mine.py")
    ('--logging-steps', '--log-interval', None)
    """
    line, steps = ParsedCommand.of(command), RENAMED[LOG_INTERVAL]
    if (given := next(filter(line.has, (LOG_INTERVAL, steps)), None)) is not None:
        return given
    if runs_pretrain_script(command):
        return LOG_INTERVAL
    version = swift_version(command)
    if not runs_ms_swift(command) or not version.is_certain:
        return None
    return LOG_INTERVAL if version.major == 3 else steps


def interleaving(layout: Layout, *, num_layers: int | None, major: int | None) -> dict[str, Value | None]:
    """Return the options of a pipeline's chunks, None for those that must go; Megatron-LM has no `major`."""
    chunks_by = {None: VIRTUAL, 3: PER_CHUNK}.get(major, CHUNKS)
    wanted = pipeline_options(layout, num_layers=num_layers, chunks_by=chunks_by)
    return {option: wanted.get(option) for option in INTERLEAVING}


def with_underscores(edited: str, command: str, options: Iterable[str]) -> str:
    """Return the edited command with underscores in the options that were added, if the command has no own spelling.

    >>> with_underscores("megatron sft --micro-batch-size 2", "megatron sft", ["--micro-batch-size"])
    'megatron sft --micro_batch_size 2'
    """
    if _has_own_spelling(command):
        return edited
    for option in options:
        written = [*re.finditer(rf"(?<![\w-]){re.escape(option)}(?=[\s=])", edited)]
        # Of two, one may stand in a word that only looks like an option; ms-swift takes hyphens as well.
        if len(written) == 1:
            start, end = written[0].span()
            edited = edited[:start] + _underscored(option) + edited[end:]
    return edited


def _underscored(option: str) -> str:
    return "--" + option[2:].replace("-", "_")


def _has_own_spelling(command: str) -> bool:
    """Return whether any option of the training program itself has several words in its name."""
    target = ParsedCommand.of(command).found_target
    if target is None:
        return True
    names = (option.word.value[2:].partition("=")[0] for option in read_options(own_words(target.words, target.first)))
    return any("-" in name or "_" in name for name in names)


def says_false(command: str, option: str) -> bool:
    """Return whether a command switches something off explicitly."""
    said = ParsedCommand.of(command).get(option)
    return said is not None and said.lower() in ("false", "no", "off", "0")


def megatron_subject(
    command: str, *, model: str | None, cluster: str | None, n_gpus: int, seq: int | None
) -> PlanSubject:
    """Return model, cluster and job, or raise UsageError with what is missing and how to give it."""
    # Not at the top: the catalogs are loaded only where a plan is made.
    from zenith_tune.describe.framework_spec import load_framework

    shape, seq_len = job_model(model), seq or sequence_in_command(command)
    if seq_len is None:
        raise UsageError(f"the command has neither {' nor '.join(SEQUENCE_OPTIONS)}", hint="give --args seq=4096")
    job = JobSpec(seq_len=seq_len, framework=load_framework("megatron"))
    return PlanSubject(model=shape, cluster=job_cluster(cluster, n_gpus), job=job)


def batch_notes(command: str, gbs: int) -> list[str]:
    """Return a line where the command itself says another batch: its gain would compare two different jobs."""
    said = ParsedCommand.of(command).get("--global-batch-size")
    if said is None or whole(said) is None or int(said) == gbs:
        return []
    return [f"your own command has a global batch of {said} and the trials of {gbs}: the gain compares both"]


def tokens_notes(command: str) -> list[str]:
    """Return a line where samples may be shorter than the sequence, so that tokens/s counts some that are not there."""
    packing = ParsedCommand.of(command).get("--packing")
    if (packing or "").lower() == "true" or not runs_ms_swift(command) or sequence_in_command(command) is None:
        return []
    return ["tokens/s takes every sample for --max_length tokens, of which it has fewer without --packing true"]


def switched_on(command: str) -> tuple[bool, bool]:
    """Return whether a command shards the optimizer, and whether it has sequence parallelism."""
    line = ParsedCommand.of(command)
    sharded = line.has("--use-distributed-optimizer") or runs_ms_swift(command)  # ms-swift has it by default
    return sharded, line.has(SEQUENCE_PARALLEL) and not says_false(command, SEQUENCE_PARALLEL)


def layout_in(command: str, layout: Layout) -> Layout:
    """Return a layout with what the command says of sharding and of sequence parallelism."""
    sharded, sp = switched_on(command)
    return replace(layout, zero=int(sharded), sequence_parallel=layout.tp > 1 and sp)


def with_recompute(layout: Layout, params: Mapping[str, Value]) -> Layout:
    """Return a layout with the recomputation of a point."""
    if params.get("recompute_granularity") != "full":
        return replace(layout, recompute="selective")
    method, layers = params.get("recompute_method", "uniform"), int(params.get("recompute_num_layers", 1))
    return replace(layout, recompute=f"full/{method}", recompute_layers=layers)
