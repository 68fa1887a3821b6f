"""Which preset a command is made for, where the user names none."""

from __future__ import annotations

from zenith_tune.errors import UsageError
from zenith_tune.registry import PresetRegistry
from zenith_tune.shell.secrets import find_secrets, mask


def recognised_preset(command: str) -> str:
    """Return the name of the first preset that recognises the command."""
    for name, cls in PresetRegistry.each_loadable():
        if cls.recognises(command):
            return name
    known = ", ".join(PresetRegistry.names())
    raise UsageError(
        f"no preset recognises the command {mask(command, find_secrets(command))!r}: choose one by "
        f"--preset ({known}), or write your own (docs/plugs.md)"
    )
