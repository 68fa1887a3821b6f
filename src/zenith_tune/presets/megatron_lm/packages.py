"""Which optional packages the interpreter has that runs the user's command, by what its log says."""

from __future__ import annotations

import json
from pathlib import Path

from zenith_tune.errors import CommandError
from zenith_tune.presets import import_hook
from zenith_tune.presets.accelerate.command import HOOK_PATH
from zenith_tune.presets.accelerate.emit import hook_files
from zenith_tune.presets.megatron_lm import hook
from zenith_tune.shell import ParsedCommand

HOOK_FILES = hook_files(
    {"sitecustomize": Path(hook.__file__), "zenithtune_import_hook": Path(import_hook.__file__)},
)
APEX = (hook.FUSED_GRADIENTS, hook.FUSED_SOFTMAX)
"""What is built with Apex."""
NO_APEX = ("Apex is not installed", "Apex are not installed")
"""What Megatron warns of when it starts without it."""


def asking(command: str) -> str:
    """Return the command as its log says what is installed, where a variable can be set for it."""
    try:
        return ParsedCommand.of(command).started.with_path("PYTHONPATH", HOOK_PATH)
    except CommandError:
        return command


def installed(log: str) -> dict[str, bool]:
    """Return which packages are there and which are not, as far as a log tells; one process that has it is enough.

    >>> installed('zenithtune-accelerate: {"packages": {"deep_ep": false}}')
    {'deep_ep': False}
    """
    found: dict[str, bool] = {}
    for line in log.splitlines():
        _, prefix, text = line.partition(import_hook.PREFIX)
        for name, is_there in (_packages(text) if prefix else {}).items():
            found[name] = found.get(name, False) or is_there is True
    if any(warning in log for warning in NO_APEX):
        found = {**dict.fromkeys(APEX, False), **found}
    return found


def _packages(text: str) -> dict[str, object]:
    """Return what one line says; nothing where another line runs into it."""
    try:
        found = json.loads(text).get("packages", {})
    except (AttributeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
