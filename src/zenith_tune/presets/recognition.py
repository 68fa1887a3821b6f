"""Which preset a command is for, found by light modules: no preset is loaded for another framework's command."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from zenith_tune.registry import entry_points

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
    "mmengine": "mmengine",
    "nanotron": "nanotron",
    "torchtitan": "torchtitan",
    "trainer": "trainer",
}
"""The folder of each built-in preset that recognises commands: `preset` has its class, `command` recognises.

`command` has `recognises(command)`, and may have `may_be_for(command)`, for a command that only a run of it can prove,
and `arguments_in(command)`, the constructor's arguments that the command itself gives.
"""
GROUP = "zenith_tune.recognition"
"""The entry points of other packages' `command` modules, by the names of their presets."""
SIBLINGS = {
    "mimo": ("mimo", ("mimo_train.py", "pretrain_mimo.py")),
    "nemo-rl": ("rl", ("examples/run_grpo.py", "examples/run_grpo_math.py", "examples/run_vlm_grpo.py")),
    "verl": ("rl", ("verl.trainer.main_ppo", "verl/trainer/main_ppo.py")),
}
"""The presets of this project's other packages: the extra that installs each, and the programs that it is for."""
YIELDS_TO = {"accelerate": ("axolotl", "deepspeed", "trainer")}
"""The presets that a command is for in the first place, where several recognise it."""


def recognised_as(name: str, command: str) -> bool:
    """Return whether a command is for the preset of this name."""
    is_for = _ask(name, "recognises", command, default=False)
    return is_for and not any(recognised_as(other, command) for other in YIELDS_TO.get(name, ()))


def may_be(name: str, command: str) -> bool:
    """Return whether a run of a command could show that it is for a preset, where its text does not."""
    return bool(_ask(name, "may_be_for", command, default=False))


def arguments_in(name: str, command: str) -> dict[str, Any]:
    """Return the arguments of a preset's constructor that the command itself gives."""
    found: dict[str, Any] = _ask(name, "arguments_in", command, default={})
    return found


def command_module(name: str) -> ModuleType | None:
    """Return the light module that knows a preset's commands: a built-in one's, or what a plug-in's package names."""
    if name in FRAMEWORKS:
        return importlib.import_module(f"zenith_tune.presets.{FRAMEWORKS[name]}.command")
    return next((point.load() for point in entry_points(GROUP).select(name=name)), None)


def _ask(name: str, question: str, command: str, *, default: Any) -> Any:
    answer = getattr(command_module(name), question, None)
    return default if answer is None else answer(command)
