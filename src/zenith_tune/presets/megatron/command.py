"""The run of one of Megatron-LM's pretrain scripts that a command comes down to."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.launchers import EVALUATED
from zenith_tune.shell.parsed_command import script_text
from zenith_tune.shell.scripts.runs import ProgramRun, find_runs

PROGRAM = re.compile(r"(?:^|/)pretrain_(\w+)\.py$", re.ASCII)
MODULE = re.compile(r"(?:^|\.)pretrain_(\w+)$", re.ASCII)
"""The same script as a module, behind -m."""
OTHER_KINDS = ("bert", "t5", "ict", "retro", "mamba", "hybrid", "mimo", "vlm", "vision_classify", "vision_dino")
"""Scripts for what is no decoder-only transformer, whose shape is not known here."""
LAYOUT_VARIABLE = "LAYOUT"
"""Of a script that `plan --emit` writes: its layout, in whose place a trial gives its own."""
_SAYS_LAYOUT = re.compile(rf"\b{LAYOUT_VARIABLE}=")


def find_pretrain_run(command: str, environment: Mapping[str, str] | None = None) -> ProgramRun | None:
    """Return the first run of a pretrain script that a command leads to, or None."""
    return next(iter(find_runs(command, is_pretrain_script, environment).runs), None)


UNFOLLOWED = re.compile(
    r"\w\[[^\]]*\]\+?=|\b(?:declare|local|typeset|export)\s+-\w*n|\b(?:eval|mapfile|readarray|read|xargs|source)\b|^\s*\.\s",
    re.MULTILINE,
)
"""What may give a run other arguments than those that are read here."""


def is_read_whole(command: str, runs: Sequence[ProgramRun]) -> bool:
    """Return whether all arguments of the runs of a command are known: of one run, whatever the environment."""
    anywhere = find_runs(command, is_pretrain_script, {}).runs
    if len(runs) != 1 or [run.arguments for run in anywhere] != [runs[0].arguments]:
        return False
    [run] = runs
    text = f"{command.replace(EVALUATED, '')}\n{script_text(run.script) if run.script else ''}"
    is_open = any(mark in word for word in run.arguments for mark in "$`")
    return not (run.extended or run.is_guarded or is_open or UNFOLLOWED.search(text))


def pretrain_kind(run: ProgramRun) -> str:
    """Return what the script trains, such as gpt."""
    match = PROGRAM.search(run.program) or MODULE.search(run.program)
    return match[1] if match else ""


def is_pretrain_script(words: Sequence[str], at: int) -> bool:
    """Return whether a word of a command is a pretrain script, by its file or as a module."""
    is_module = at > 0 and words[at - 1] in ("-m", "--module") and MODULE.search(words[at])
    return bool(is_module or PROGRAM.search(words[at]))


def recognises(command: str) -> bool:
    """Return whether a command comes down to a pretrain script for decoder-only models."""
    run = find_pretrain_run(command)
    return run is not None and pretrain_kind(run) not in OTHER_KINDS


def without_layout(command: str) -> str:
    """Return the command of a script that `plan --emit` wrote, without the layout that it has by itself.

    One that the user gives stays.
    """
    if LAYOUT_VARIABLE in os.environ or _SAYS_LAYOUT.search(command):
        return command
    # In front of several commands it would count for the first alone.
    return (
        f"export {LAYOUT_VARIABLE}=; {command}"
        if ParsedCommand.of(command).needs_shell
        else f"{LAYOUT_VARIABLE}= {command}"
    )
