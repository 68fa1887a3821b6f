"""How a command that starts `accelerate launch` is recognised."""

from __future__ import annotations

from zenith_tune.errors import CommandError
from zenith_tune.presets.shared.accelerate_launch import Launch


def recognises(command: str) -> bool:
    """Return whether a command comes down to `accelerate launch`."""
    try:
        Launch(command)
    except CommandError:
        return False
    return True
