"""Samples and stages that do not fit the model; what each rank was told, printed as JSON."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn

from tests.mimo.forked_world import run_world
from tests.mimo.reference import USUAL
from tests.mimo.save_program import problem_of
from tests.mimo.small_models import GLOBAL_BATCH_SIZE, NUM_ITEMS, VISION_LANGUAGE, pair
from zenith_mimo.modules import MimoModel
from zenith_mimo.optimizer import get_mimo_optimizer
from zenith_mimo.planning.config import ModuleLayout
from zenith_mimo.samples import RandomSamples, Sample
from zenith_mimo.topology import Topology
from zenith_mimo.trainer import Trainer

OWN = pair(ModuleLayout(), ModuleLayout(offset=1))
SHARED = pair(ModuleLayout(), ModuleLayout())
Change = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Samples:
    """A batch with one token replaced."""

    num_samples: int = GLOBAL_BATCH_SIZE
    place: int = 0
    token: int | None = None

    def __len__(self) -> int:
        return self.num_samples

    def read(self, index: int, encoder: str | None) -> Sample:
        batch = RandomSamples(config=VISION_LANGUAGE, num_samples=self.num_samples, seed=0, num_items=NUM_ITEMS)
        sample = batch.read(index, encoder)
        if self.token is not None and index == 1:
            sample.tokens[self.place] = self.token
        return dataclasses.replace(sample, tokens=sample.tokens)


def leave_alone(vision: nn.Module) -> None:
    """Change nothing."""


def add_scalar(vision: nn.Module) -> None:
    vision.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))


def change_rows(change: Callable[[Tensor], Tensor], vision: Any) -> None:
    made = vision.rows
    vision.rows = lambda hidden: change(made(hidden))


def attempt(layout: Any, samples: Samples, change: Change) -> dict[str, str]:
    """Train a step in bfloat16."""

    def train() -> None:
        topology = Topology(layout, timeout=timedelta(seconds=60))
        model = MimoModel.of(VISION_LANGUAGE, topology, dtype=torch.bfloat16)
        if "vision" in model.parts:
            change(model.parts["vision"])
        optimizer = get_mimo_optimizer(model, USUAL)
        Trainer(model, optimizer, micro_batch_size=2, global_batch_size=GLOBAL_BATCH_SIZE).step(samples)

    return {"problem": problem_of(train)}


WRONG: dict[str, tuple[Samples, Change]] = {
    "nothing": (Samples(), leave_alone),
    "one sample fewer": (Samples(GLOBAL_BATCH_SIZE - 1), leave_alone),
    "half a batch more": (Samples(GLOBAL_BATCH_SIZE * 3 // 2), leave_alone),
    "token too large": (Samples(token=48, place=3), leave_alone),
    "last label too large": (Samples(token=99, place=24), leave_alone),
    "token below 0": (Samples(token=-1, place=3), leave_alone),
    "half rows": (Samples(), functools.partial(change_rows, Tensor.half)),
    "single rows": (Samples(), functools.partial(change_rows, Tensor.float)),
    "narrow rows": (Samples(), functools.partial(change_rows, lambda rows: rows[:, :5])),
    "scalar": (Samples(), add_scalar),
}


if __name__ == "__main__":
    found = {}
    for name, (samples, change) in WRONG.items():
        worlds = {"own": run_world(2, functools.partial(attempt, OWN, samples, change))}
        worlds["shared"] = run_world(1, functools.partial(attempt, SHARED, samples, change))
        found[name] = {kind: [rank["problem"] for rank in ranks] for kind, ranks in worlds.items()}
    print(json.dumps(found))
