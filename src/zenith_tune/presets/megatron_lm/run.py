"""The run of one of Megatron-LM's pretrain_*.py that a command comes down to."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from zenith_tune.shell.script import ProgramRun, find_runs

PROGRAM = re.compile(r"(?:^|/)pretrain_(\w+)\.py$", re.ASCII)
MODULE = re.compile(r"(?:^|\.)pretrain_(\w+)$", re.ASCII)
"""The same script as a module, behind -m."""


def find_pretrain_run(command: str, environment: Mapping[str, str] | None = None) -> ProgramRun | None:
    """Return the first run of a pretrain script that a command leads to, or None.

    >>> run = find_pretrain_run("TP=2; torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size $TP")
    >>> run.launcher[-1], run.arguments
    ('8', ('--tensor-model-parallel-size', '2'))
    """
    return next(iter(find_runs(command, _is_pretrain_script, environment).runs), None)


def why_unread(command: str) -> str:
    """Return why part of what a command leads to was not read; empty where all was."""
    return find_runs(command, _is_pretrain_script).unread


def pretrain_kind(run: ProgramRun) -> str:
    """Return what the script trains, such as gpt."""
    match = PROGRAM.search(run.program) or MODULE.search(run.program)
    return match[1] if match else ""


def _is_pretrain_script(words: Sequence[str], at: int) -> bool:
    is_module = at > 0 and words[at - 1] in ("-m", "--module") and MODULE.search(words[at])
    return bool(is_module or PROGRAM.search(words[at]))
