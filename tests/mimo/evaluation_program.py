"""Evaluate in two layouts, and train with other optimizers than AdamW, from one layout on in another; print JSON."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from tests.mimo.comparison import make_trainer
from tests.mimo.forked_world import run_world
from tests.mimo.reference import samples_of_step
from tests.mimo.small_models import GLOBAL_BATCH_SIZE, VISION_LANGUAGE
from zenith_mimo.checkpoint import load_checkpoint, save_checkpoint
from zenith_mimo.optimizer import get_mimo_optimizer
from zenith_mimo.samples import RandomSamples
from zenith_mimo.trainer import Trainer
from zenith_tune.errors import UsageError

LAYOUTS = ("4 ranks, llm pp3", "colocated tp2 dp2 both")
OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda module, groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "plain sgd": lambda module, groups: torch.optim.SGD(groups, lr=0.1 if module == "vision" else 0.2),
    "rmsprop": lambda module, groups: torch.optim.RMSprop(groups, lr=1e-3),
    "nadam": lambda module, groups: torch.optim.NAdam(groups, lr=1e-3),
}


def optimized(layout: str, make: Any) -> Trainer:
    made = make_trainer(layout, torch.float64, seed=3, use_distributed_optimizer=True)
    optimizer = get_mimo_optimizer(made.model, made.optimizer.config, optimizer=make)
    return Trainer(made.model, optimizer, micro_batch_size=2, global_batch_size=GLOBAL_BATCH_SIZE)


def losses(trainer: Trainer, steps: range) -> list[float]:
    return [trainer.step(samples_of_step(VISION_LANGUAGE, step)).loss for step in steps]


def adafactor(module: str, groups: list[dict[str, Any]]) -> Optimizer:
    return torch.optim.Adafactor(groups)


def work(root: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"evaluated": {}, "optimizers": {}}
    for layout in LAYOUTS:
        trainer = make_trainer(layout, torch.float64)
        batch = samples_of_step(VISION_LANGUAGE, 1)
        first = trainer.evaluate(batch)
        trained, _ = trainer.accumulate(batch)
        half = RandomSamples(config=VISION_LANGUAGE, num_samples=8, seed=5, num_items=(0, 2, 1))
        found["evaluated"][layout] = [first, trained, trainer.evaluate(half), *losses(trainer, range(2))]
        assert all(module.training for module in trainer.model.modules())
        trainer.close()
    for name, make in OPTIMIZERS.items():
        one = optimized(LAYOUTS[0], make)
        begun = losses(one, range(2))
        save_checkpoint(root / name, one)
        expected = losses(one, range(2, 4))
        one.close()
        other = optimized(LAYOUTS[1], make)
        load_checkpoint(root / name, other)
        found["optimizers"][name] = {"begun": begun, "expected": expected, "found": losses(other, range(2, 4))}
        other.close()
    refused = optimized(LAYOUTS[1], adafactor)
    try:
        save_checkpoint(root / "refused", refused)
    except UsageError as error:
        found["refused"] = str(error)
    refused.close()
    return found


if __name__ == "__main__":
    print(json.dumps(run_world(4, functools.partial(work, Path(sys.argv[1])))))
