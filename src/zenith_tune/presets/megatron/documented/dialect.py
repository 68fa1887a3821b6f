"""What a command of preset megatron stands for, and how ms-swift 3 and 4 and Megatron-LM's scripts spell a point."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.megatron.command import find_pretrain_run
from zenith_tune.presets.megatron.documented.command import FAKE_TRAINER, runs_ms_swift, runs_pretrain_script
from zenith_tune.presets.megatron.options import (
    CHUNKS,
    LOG_INTERVAL,
    OPTIONS,
    PER_CHUNK,
    RECOMPUTE,
    SEQUENCE_PARALLEL,
    VIRTUAL,
    Wanted,
    pipeline_options,
    with_options,
)
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.options import own_words, read_options
from zenith_tune.shell.placeholders import fill_or_set
from zenith_tune.study.parameters import Value

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
    """Return the version that a command is written for: by its options, else the installed one, else 4."""
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
    """Return the option by which a command prints every iteration, where it is certain to be known there."""
    line, steps = ParsedCommand.of(command), RENAMED[LOG_INTERVAL]
    if (given := next(filter(line.has, (LOG_INTERVAL, steps)), None)) is not None:
        return given
    if runs_pretrain_script(command):
        return LOG_INTERVAL
    version = swift_version(command)
    if not runs_ms_swift(command) or not version.is_certain:
        return None
    return LOG_INTERVAL if version.major == 3 else steps


def interleaving(layout: Layout, command: str, num_layers: int | None) -> Wanted:
    """Return the options of a pipeline's chunks, None for those that must go."""
    chunks_by = VIRTUAL
    if runs_ms_swift(command):
        chunks_by = PER_CHUNK if swift_version(command).major == 3 else CHUNKS
    wanted = pipeline_options(layout, num_layers=num_layers, chunks_by=chunks_by)
    return {option: wanted.get(option) for option in INTERLEAVING}


def with_underscores(edited: str, command: str, options: Iterable[str]) -> str:
    """Return the edited command with underscores in the options that were added, if the command has no own spelling."""
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


def switched_on(command: str) -> tuple[bool, bool]:
    """Return whether a command shards the optimizer, and whether it has sequence parallelism."""
    line = ParsedCommand.of(command)
    sharded = line.has("--use-distributed-optimizer") or runs_ms_swift(command)  # ms-swift has it by default
    return sharded, line.has(SEQUENCE_PARALLEL) and not says_false(command, SEQUENCE_PARALLEL)


_ONES: Mapping[str, Value] = dict.fromkeys(("tp", "pp", "cp", "ep", "etp"), 1)
_FAKE_TRAINER_TAKES: Mapping[str, Value] = {
    **_ONES,
    "mbs": 1,
    "gbs": 16,
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
    "vit_gradient_checkpointing": "true",
}
_MS_SWIFT_TAKES: Mapping[str, Value] = {**_ONES, "mbs": 1, "gbs": 16, "recompute_granularity": "selective"}


def own_values(command: str) -> dict[str, Value]:
    """Return the values that a command stands for, by its options and its program's defaults, where they are known."""
    line = ParsedCommand.of(command)
    if runs_ms_swift(command):
        taken = dict(_MS_SWIFT_TAKES)
    elif runs_pretrain_script(command):
        # Unset, --expert-tensor-parallel-size is that of the dense layers, and nothing is recomputed.
        taken = {**_ONES, "etp": _value(line.get(OPTIONS["tp"]) or "1")}
        if line.has(RECOMPUTE[-1]):
            taken["recompute_granularity"] = "selective"
    elif FAKE_TRAINER.search(command):
        taken = dict(_FAKE_TRAINER_TAKES)
    else:
        return {}
    return taken | {name: _value(said) for name, option in OPTIONS.items() if (said := line.get(option)) is not None}


def _value(said: str) -> Value:
    return int(said) if said.isdecimal() and len(said) < 10 else said


def edit_command(command: str, values: Mapping[str, Value], wanted: Wanted) -> str:
    """Fill the placeholders of `command`, such as {tp}, then set the options of the values that had none.

    What `wanted` has is set or taken away instead.
    """
    options = {name: option for name, option in OPTIONS.items() if name in values and option not in wanted}
    return with_options(ParsedCommand.of(fill_or_set(command, options, values)), wanted).text


def describes_dense_model(command: str) -> bool:
    """Return whether a command describes its whole model by options, and none of them is about experts."""
    run = find_pretrain_run(command)
    if run is None or run.extended:
        return False
    args = MegatronArgs.of(run.arguments)
    return args.has("--num-layers") and args.has("--hidden-size") and not args.has("--num-experts")
