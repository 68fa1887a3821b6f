"""Which preset a command is for, found by light modules: no preset is loaded for another framework's command."""

from __future__ import annotations

import importlib
from typing import Any

RECOGNISERS = {
    "accelerate": "zenith_tune.presets.accelerate.command",
    "axolotl": "zenith_tune.presets.axolotl.command",
    "deepspeed": "zenith_tune.presets.deepspeed.command",
    "llamafactory": "zenith_tune.presets.llamafactory.command",
    "megatron": "zenith_tune.presets.megatron.documented.command",
    "megatron-bridge": "zenith_tune.presets.megatron_bridge.command",
    "megatron-lm": "zenith_tune.presets.megatron.command",
    "mimo": "zenith_tune.presets.mimo.command",
    "torchtitan": "zenith_tune.presets.torchtitan.command",
    "trainer": "zenith_tune.presets.trainer.command",
}
"""The module of each built-in preset with `recognises(command)`.

It may also have `may_be_for(command)`, for a command that only a run of it can prove, and `arguments_in(command)`, the
constructor's arguments that the command itself gives.
"""
YIELDS_TO = {"accelerate": ("axolotl", "deepspeed", "trainer")}
"""The presets that a command is for in the first place, where several recognise it."""


def recognised_as(name: str, command: str) -> bool:
    """Return whether a command is for the built-in preset of this name."""
    is_for = _ask(name, "recognises", command, default=False)
    return is_for and not any(recognised_as(other, command) for other in YIELDS_TO.get(name, ()))


def may_be(name: str, command: str) -> bool:
    """Return whether a run of a command could show that it is for a preset, where its text does not."""
    return bool(_ask(name, "may_be_for", command, default=False))


def arguments_in(name: str, command: str) -> dict[str, Any]:
    """Return the arguments of a preset's constructor that the command itself gives."""
    found: dict[str, Any] = _ask(name, "arguments_in", command, default={})
    return found


def _ask(name: str, question: str, command: str, *, default: Any) -> Any:
    module = importlib.import_module(RECOGNISERS[name]) if name in RECOGNISERS else None
    answer = getattr(module, question, None)
    return default if answer is None else answer(command)
