"""Read batches from a DataLoader, ahead of the schedule, and balanced by their items; print what was found as JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.mimo.comparison import make_trainer
from tests.mimo.forked_world import run_world
from tests.mimo.reference import samples_of_step
from tests.mimo.small_models import GLOBAL_BATCH_SIZE, NUM_ITEMS, VISION_LANGUAGE
from zenith_mimo.samples import LoaderBatch, RandomSamples, Sample, loader_batches
from zenith_mimo.trainer import Trainer
from zenith_tune.errors import ZenithTuneError

NUM_BATCHES = 3
SLEEP_S = 0.01


class Captions:
    """As many samples as three batches have; each notes which thread reads it."""

    def __init__(self) -> None:
        size = NUM_BATCHES * GLOBAL_BATCH_SIZE
        self._samples = RandomSamples(config=VISION_LANGUAGE, num_samples=size, seed=0, num_items=NUM_ITEMS)
        self.seen: list[int] = []
        self.threads: set[str] = set()

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Sample:
        self.seen.append(index)
        self.threads.add(threading.current_thread().name)
        time.sleep(SLEEP_S)
        return self._samples.read(index, "vision")

    def count_items(self, index: int) -> int:
        return self._samples.count_items(index)


class Stream(IterableDataset):  # type: ignore[misc]
    """Samples without numbers."""

    def __iter__(self) -> Iterator[Sample]:
        return iter([])


class Broken(Captions):
    """A file that cannot be read."""

    def __getitem__(self, index: int) -> Sample:
        if index == 5:
            raise OSError("no such image")
        return super().__getitem__(index)


def loader_of(dataset: Any, **options: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=GLOBAL_BATCH_SIZE, shuffle=True, num_workers=2, **options)


def losses_by_loader(layout: str, skipped: int) -> dict[str, Any]:
    """Train on what rank 0 shuffles: the other ranks' seeds differ."""
    trainer, dataset = make_trainer(layout, torch.float64), Captions()
    torch.manual_seed(17 if trainer.model.topology.rank == 0 else trainer.model.topology.rank)
    batches = loader_batches(loader_of(dataset), consumed_samples=skipped * GLOBAL_BATCH_SIZE)
    found = [done.loss for done in trainer.train(batches)]
    has_read = {name: role.tp_rank == role.pp_rank == 0 for name, role in trainer.model.topology.roles.items()}
    trainer.close()
    return {
        "losses": found,
        "num_read": len(dataset.seen),
        "reads": any(has_read.values()),
        "main thread": "MainThread" in dataset.threads,
        "consumed": trainer.consumed_samples,
    }


def balanced(layout: str) -> dict[str, Any]:
    """Return a step's loss and norm as the samples come and balanced, and the largest number of items of a part."""
    found: dict[str, Any] = {}
    for balance in (False, True):
        made = make_trainer(layout, torch.float64)
        sizes = {"micro_batch_size": made.micro_batch_size, "global_batch_size": GLOBAL_BATCH_SIZE}
        trainer = Trainer(made.model, made.optimizer, **sizes, balance_items=balance)
        done = trainer.step(samples_of_step(VISION_LANGUAGE, 0))
        found[str(balance)] = [done.loss, done.grad_norm]
        trainer.close()
    return found


def refusals(layout: str) -> dict[str, str]:
    made = make_trainer(layout, torch.float64)
    sizes = {"micro_batch_size": made.micro_batch_size, "global_batch_size": GLOBAL_BATCH_SIZE}
    unknown = LoaderBatch(dataset=[], indices=list(range(GLOBAL_BATCH_SIZE)))
    attempts: dict[str, Any] = {
        "stream": lambda: next(loader_batches(DataLoader(Stream(), batch_size=2))),
        "uncounted": lambda: Trainer(made.model, made.optimizer, **sizes, balance_items=True).step(unknown),
        "size": lambda: list(made.train([samples_of_step(VISION_LANGUAGE, 0), [None]])),  # type: ignore[list-item]
        "broken": lambda: made.step(LoaderBatch(dataset=Broken(), indices=list(range(GLOBAL_BATCH_SIZE)))),
    }
    found = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            found[name] = "nothing"
        except (ZenithTuneError, OSError, RuntimeError) as error:
            found[name] = str(error)
    return found


def work() -> dict[str, Any]:
    layouts = ("4 ranks, llm pp3", "colocated tp2 dp2 both")
    found: dict[str, Any] = {name: [losses_by_loader(name, skipped) for skipped in (0, 2)] for name in layouts}
    return {"loader": found, "balanced": {name: balanced(name) for name in layouts}, "refused": refusals(layouts[1])}


if __name__ == "__main__":
    print(json.dumps(run_world(4, work)))
