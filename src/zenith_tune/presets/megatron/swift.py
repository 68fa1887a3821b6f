"""How ms-swift's `megatron sft`, of version 3 or 4, spells what Megatron-LM spells otherwise."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import dataclass

from zenith_tune.errors import CommandError
from zenith_tune.shell import CommandLine
from zenith_tune.shell.lexer import lex
from zenith_tune.shell.options import own_words, read_options
from zenith_tune.shell.target import find_target
from zenith_tune.study.parameters import Value

RENAMED = {
    "--save-interval": "--save-steps",
    "--log-interval": "--logging-steps",
    "--train-type": "--tuner-type",
    "--max-epochs": "--num-train-epochs",
}
"""Options of version 3, each with its name in version 4."""
CHUNKS, LAYERS_PER_CHUNK = "--virtual-pipeline-model-parallel-size", "--num-layers-per-virtual-pipeline-stage"
MEGATRON_CHUNKS = "--num-virtual-stages-per-pipeline-rank"
INTERLEAVING = (CHUNKS, LAYERS_PER_CHUNK, MEGATRON_CHUNKS)
"""Every option by which a pipeline is interleaved: ms-swift 4's, version 3's and Megatron-LM's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwiftVersion:
    """Hold the major version of ms-swift, and what it is told by."""

    major: int
    source: str


def swift_version(command: str) -> SwiftVersion:
    """Return the version that a command is written for: by its options, else the installed one, else 4.

    >>> swift_version("megatron sft --save_interval 100").major
    3
    """
    try:
        line = CommandLine(command)
        told = {3: list(filter(line.has, RENAMED)), 4: list(filter(line.has, RENAMED.values()))}
    except CommandError:
        told = {3: [], 4: []}
    if len(told[3]) != len(told[4]):
        major = 3 if len(told[3]) > len(told[4]) else 4
        return SwiftVersion(major=major, source=f"the command has {_underscored(told[major][0])}")
    try:
        installed = importlib.metadata.version("ms-swift")
        return SwiftVersion(major=3 if int(installed.partition(".")[0]) <= 3 else 4, source=f"{installed} is installed")
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return SwiftVersion(major=4, source="neither the command nor an installed package tells")


def interleaving(*, pp: int, vp: int, num_layers: int | None, major: int | None) -> dict[str, Value | None]:
    """Return the options of vp chunks per pipeline rank, None for those that must go; Megatron-LM has no `major`."""
    options: dict[str, Value | None] = dict.fromkeys(INTERLEAVING)
    if vp == 1:
        return options
    if major == 3:
        assert num_layers is not None  # asked for before the first trial
        return {**options, LAYERS_PER_CHUNK: num_layers // (pp * vp)}
    return {**options, MEGATRON_CHUNKS if major is None else CHUNKS: vp}


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
    """Tell whether any option of the training program itself has several words in its name."""
    try:
        target = find_target(command, lex(command))
    except CommandError:
        return True
    names = (option.word.value[2:].partition("=")[0] for option in read_options(own_words(target.words, target.first)))
    return any("-" in name or "_" in name for name in names)


def says_false(command: str, option: str) -> bool:
    """Tell whether a command switches something off in so many words."""
    try:
        said = CommandLine(command).get(option)
    except CommandError:
        return False
    return said is not None and said.lower() in ("false", "no", "off", "0")
