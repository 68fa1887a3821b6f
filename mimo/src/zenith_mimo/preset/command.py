"""How commands that train an encoder and a language model are recognised."""

from __future__ import annotations

import re

from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.command import find_pretrain_run, pretrain_kind
from zenith_tune.presets.shared.training_files import path_in_training_folder
from zenith_tune.presets.shared.trial_hook import starts_python
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import ProgramRun
from zenith_tune.study.files import read_regular

EXAMPLE = "mimo_train.py"
KIND = "mimo"
"""What Megatron-LM's pretrain script is called for."""


_IMPORT = re.compile(r"^\s*(?:import|from)\s+(?:zenith_mimo|zenith_tune\.mimo)\.command\b", re.MULTILINE)
"""What adds the options by which a script takes its layout."""
MAX_BYTES = 1 << 20


def recognises(command: str) -> bool:
    """Return whether `command` runs a script that takes its layout as this package's MIMO example, or Megatron-LM's."""
    return runs_example(command) or runs_own_script(command) or megatron_run(command) is not None


def runs_own_script(command: str) -> bool:
    """Return whether the command runs a Python file that imports zenith_mimo's options of a layout."""
    target = ParsedCommand.of(command).found_target
    if target is None or not starts_python(command):
        return False
    try:
        path = path_in_training_folder(command, target.words[target.first - 1].value)
        return bool(_IMPORT.search(read_regular(path, MAX_BYTES).decode(errors="replace")))
    except (OSError, UsageError):
        return False


def runs_example(command: str) -> bool:
    """Return whether the command runs this package's example."""
    return any(word.rpartition("/")[2] == EXAMPLE for word in ParsedCommand.of(command).front[-1:])


def megatron_run(command: str) -> ProgramRun | None:
    """Return the run of Megatron-LM's MIMO script that a command comes down to, or None."""
    run = find_pretrain_run(command)
    return run if run is not None and pretrain_kind(run) == KIND else None
