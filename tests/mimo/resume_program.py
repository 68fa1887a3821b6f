"""What a training is continued with besides weights and moments, and what training other parts takes over; as JSON."""

from __future__ import annotations

import functools
import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, MultiStepLR

from tests.mimo.comparison import make_trainer
from tests.mimo.forked_world import run_world
from tests.mimo.reference import samples_of_step
from tests.mimo.save_program import problem_of
from tests.mimo.small_models import GLOBAL_BATCH_SIZE, VISION_LANGUAGE
from zenith_mimo.checkpoint import load_checkpoint, save_checkpoint
from zenith_mimo.optimizer import get_mimo_optimizer
from zenith_mimo.trainer import Trainer

DTYPE = torch.float64
TWO, FOUR = "2 ranks", "4 ranks, llm pp3"
FROZEN, TRAINED = "frozen language, colocated", "colocated tp2 dp2 both"


def schedule(module: str, optimizer: Optimizer) -> LRScheduler:
    if module == "vision":
        return LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return MultiStepLR(optimizer, [1, 3], gamma=0.1)


def scheduled(layout: str) -> Trainer:
    """Return a trainer with schedules, whose encoder has buffers."""
    made = make_trainer(layout, DTYPE, seed=99)
    vision = dict(made.model.parts.items()).get("vision")
    if vision is not None:
        vision.register_buffer("num_seen", torch.tensor(0))
        vision.register_buffer("mean", torch.zeros(3, dtype=DTYPE))
        vision.register_buffer("table", torch.zeros(2), persistent=False)
    optimizer = get_mimo_optimizer(made.model, made.optimizer.config, schedule)
    return Trainer(made.model, optimizer, micro_batch_size=1, global_batch_size=GLOBAL_BATCH_SIZE)


def buffers_of(trainer: Trainer) -> list[float]:
    return [float(value) for buffer in trainer.model.buffers() for value in buffer.reshape(-1)]


def rates(trainer: Trainer) -> dict[str, float]:
    return {name: module.optimizer.param_groups[0]["lr"] for name, module in trainer.optimizer.active.items()}


def next_numbers() -> list[float]:
    return [random.random(), float(torch.rand(())), float(np.random.rand())]


def train_on(trainer: Trainer) -> dict[str, Any]:
    found: dict[str, Any] = {"begin": [trainer.iteration, trainer.consumed_samples], "buffers": buffers_of(trainer)}
    found["rates"] = [rates(trainer)]
    found["losses"] = []
    for _ in range(2):
        found["losses"].append(trainer.step(samples_of_step(VISION_LANGUAGE, trainer.iteration)).loss)
        found["rates"].append(rates(trainer))
    return found


def continued(folder: Path) -> dict[str, Any]:
    """Save amid a training with schedules, buffers and random numbers, and continue in the same layout."""
    trainer = scheduled(TWO)
    for step in range(2):
        trainer.step(samples_of_step(VISION_LANGUAGE, step))
    for buffer in trainer.model.buffers():
        buffer.fill_(7)
    next_numbers()
    save_checkpoint(folder, trainer)
    expected = {"numbers": next_numbers(), **train_on(trainer)}
    trainer.close()
    fresh = scheduled(TWO)
    load_checkpoint(folder, fresh)
    found = {"numbers": next_numbers(), **train_on(fresh)}
    fresh.close()
    plain = make_trainer(TWO, DTYPE)
    problem = problem_of(lambda: load_checkpoint(folder, plain))
    plain.close()
    return {"expected": expected, "found": found, "without schedule": problem}


def elsewhere(folder: Path) -> dict[str, Any]:
    """Continue in another layout, and begin another training with the weights of one whose language was frozen."""
    trainer = scheduled(FOUR)
    random.seed(5)
    before = random.getstate()
    load_checkpoint(folder, trainer)
    found = {"own numbers": random.getstate() == before, **train_on(trainer)}
    trainer.close()
    frozen = make_trainer(FROZEN, DTYPE)
    frozen.step(samples_of_step(VISION_LANGUAGE, 0))
    save_checkpoint(folder / "stage one", frozen)
    loss, _ = frozen.accumulate(samples_of_step(VISION_LANGUAGE, 1))
    frozen.close()
    whole = make_trainer(TRAINED, DTYPE, seed=99, lr=0.5)
    problem = problem_of(lambda: load_checkpoint(folder / "stage one", whole))
    load_checkpoint(folder / "stage one", whole, weights_only=True)
    stage_two = {"iteration": whole.iteration, "rates": rates(whole)}
    stage_two["losses"] = [loss, whole.step(samples_of_step(VISION_LANGUAGE, 1)).loss]
    whole.close()
    return {"found": found, "refused": problem, "stage two": stage_two}


if __name__ == "__main__":
    root = Path(sys.argv[1])
    same = run_world(2, functools.partial(continued, root))
    print(json.dumps({"same": same, "other": run_world(4, functools.partial(elsewhere, root))}))
