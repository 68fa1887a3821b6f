"""A command that trains by MMEngine's Runner: a script that takes a configuration in Python and --cfg-options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import ProgramRun, find_runs
from zenith_tune.study.files import read_regular
from zenith_tune.study.parameters import Value

OPTION = "--cfg-options"
MAX_BYTES = 1 << 20


def recognises(command: str) -> bool:
    """Return whether a command, or a shell script that it starts, runs such a script."""
    return find_run(command) is not None


def find_run(command: str) -> ProgramRun | None:
    """Return the run of such a script that a command comes down to."""
    return next(iter(find_runs(command, _is_runner).runs), None)


def _is_runner(words: Sequence[str], at: int) -> bool:
    has_config = words[at].endswith(".py") and any(word.endswith(".py") for word in words[at + 1 :])
    if not has_config:
        return False
    try:
        text = read_regular(Path(words[at]), MAX_BYTES).decode(errors="replace")
    except OSError:
        # A launcher such as mmdet's dist_train.sh finds it next to itself.
        return words[at].endswith("/train.py") and "--launcher" in words[at + 1 :]
    return "mmengine" in text and OPTION in text


def with_options(command: str, values: Mapping[str, Value]) -> str:
    """Return the command whose configuration has other values; the last of a key wins."""
    line = ParsedCommand.of(command)
    added = {key: value for key, value in values.items() if key not in line.overrides}
    line = line.override({key: value for key, value in values.items() if key not in added})
    return line.append(OPTION).override(added).text if added else line.text
