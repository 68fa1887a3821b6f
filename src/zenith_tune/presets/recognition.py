"""Which preset a command is for, found by light modules: no preset is loaded for another framework's command."""

from __future__ import annotations

import importlib
from typing import Any

FRAMEWORKS = {
    "accelerate": "accelerate",
    "automodel": "automodel",
    "axolotl": "axolotl",
    "deepspeed": "deepspeed",
    "lightning": "lightning",
    "llamafactory": "llamafactory",
    "megatron": "megatron.documented",
    "megatron-bridge": "megatron_bridge",
    "megatron-lm": "megatron",
    "mimo": "mimo",
    "mmengine": "mmengine",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
    "trainer": "trainer",
}
"""The folder of each built-in preset that recognises commands: `preset` has its class, `command` recognises.

`command` has `recognises(command)`, and may have `may_be_for(command)`, for a command that only a run of it can prove,
and `arguments_in(command)`, the constructor's arguments that the command itself gives.
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
    module = importlib.import_module(f"zenith_tune.presets.{FRAMEWORKS[name]}.command") if name in FRAMEWORKS else None
    answer = getattr(module, question, None)
    return default if answer is None else answer(command)
