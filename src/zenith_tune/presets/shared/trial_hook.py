"""The files by which a trial's Python is watched, and the command that finds them first on its path."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zenith_tune.shell import ParsedCommand

HOOK_FOLDER = "hook"
HOOK_PATH = f"{{trial_folder}}/{HOOK_FOLDER}"
_PRESETS = Path(__file__).parents[1]
HOOK_SOURCES = {
    "zenithtune_import_hook": _PRESETS / "import_hook.py",
    "zenithtune_model_hook": _PRESETS / "accelerate" / "model_hook.py",
}
"""What a hook imports in the user's process, by the names that it has there."""


def hook_files(sources: Mapping[str, Path]) -> dict[str, str]:
    """Return the files of a trial's hook, by the names of their modules."""
    return {f"{HOOK_FOLDER}/{name}.py": path.read_text(encoding="utf-8") for name, path in sources.items()}


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
