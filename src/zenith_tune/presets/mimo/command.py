"""How commands that train an encoder and a language model are recognised."""

from __future__ import annotations

from zenith_tune.presets.megatron.command import find_pretrain_run, pretrain_kind
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import ProgramRun

EXAMPLE = "mimo_train.py"
KIND = "mimo"
"""What Megatron-LM's pretrain script is called for."""


def recognises(command: str) -> bool:
    """Return whether `command` runs this package's MIMO example or Megatron-LM's."""
    return runs_example(command) or megatron_run(command) is not None


def runs_example(command: str) -> bool:
    """Return whether the command runs this package's example."""
    return any(word.rpartition("/")[2] == EXAMPLE for word in ParsedCommand.of(command).front[-1:])


def megatron_run(command: str) -> ProgramRun | None:
    """Return the run of Megatron-LM's MIMO script that a command comes down to, or None."""
    run = find_pretrain_run(command)
    return run if run is not None and pretrain_kind(run) == KIND else None
