"""The command of a trial whose Python is watched: the folder of its hooks comes first on the path."""

from __future__ import annotations

from zenith_tune.hooks.injection import HOOK_PATH
from zenith_tune.shell import ParsedCommand


def watched(command: str) -> str:
    """Return the command with a trial's hook."""
    return command if HOOK_PATH in command else hooked(command, HOOK_PATH)


def hooked(command: str, folder: str) -> str:
    """Return the command with a folder at the front of Python's path."""
    return ParsedCommand.of(command).started.with_path("PYTHONPATH", folder)


def starts_python(command: str) -> bool:
    """Return whether a command runs a Python script or module, with or without a launcher."""
    target = ParsedCommand.of(command).found_target
    if target is None or target.by_shell:
        return False
    front = [word.value for word in target.words[: target.first]]
    return bool(front) and (front[-1].endswith(".py") or "-m" in front[:-1])
