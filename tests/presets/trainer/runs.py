"""Presets that are bound to a command, and the lines that the hooks write of a run of it."""

from __future__ import annotations

import json
from typing import Any

from tests.presets.accelerate.logs import prepared, steps
from zenith_tune.hooks.process import PREFIX
from zenith_tune.presets.trainer.preset import TrainerPreset

OPTIONS = "torchrun --nproc-per-node 2 train.py --output_dir out --per_device_train_batch_size 4 --bf16"
"""Two ranks, micro-batches of 4, and so a global batch of 8."""


def bound(command: str = OPTIONS, **arguments: Any) -> TrainerPreset:
    preset = TrainerPreset(**arguments)
    preset.bind(command)
    return preset


def trained(arguments: dict[str, Any] | None = None, **values: Any) -> str:
    """Return what a Trainer says that was made with these arguments, of two ranks unless said otherwise."""
    own = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "gradient_checkpointing": False}
    event: dict[str, Any] = {
        "event": "trainer",
        "class": "Trainer",
        "arguments": {**own, **(arguments or {})},
        "world": 2,
        "gpus_of_process": 1,
        "read_from": "options",
        "checkpointing": False,
        "attention": "sdpa",
        "packages": [],
        "compute": 90,
    }
    return PREFIX + json.dumps({**event, **values}) + "\n"


def run(
    arguments: dict[str, Any] | None = None,
    *,
    passes: int = 1,
    world: int = 2,
    samples: int | None = 8,
    tokens: int | None = None,
    **values: Any,
) -> str:
    """Return the log of a whole run of steps that take a second."""
    wrapper = "DistributedDataParallel" if world > 1 else "LlamaForCausalLM"
    ranks = "".join(prepared(f"host:{rank}", processes=world, wrapper=wrapper) for rank in range(world))
    found = {"samples": samples, "tokens": tokens}
    counted = {name: value for name, value in found.items() if value is not None}
    return trained(arguments, world=world, **values) + ranks + steps([1.0] * 6, passes=passes, **counted)
