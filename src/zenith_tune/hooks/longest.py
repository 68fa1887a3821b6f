"""Gives the longest samples to the first updates of a Trainer, in the run that confirms a point.

The first update has no optimizer states in memory yet, so the second has the same samples. After them the loader keeps
its own order, so that the updates that are timed have the same samples as in the trial.
"""

from __future__ import annotations

import functools
import random
import time
from typing import Any, Iterator  # noqa: UP035 - of Python 3.8

from .process import report

NUM_UPDATES = 2
MOST_SAMPLES, MOST_S = 100_000, 30.0
"""Most samples of a dataset to look at, and the longest time to do so."""
SEEDED = random.Random(0)
FAULTS = (AttributeError, IndexError, KeyError, OSError, RuntimeError, TypeError, ValueError)
"""Exceptions that end the look at samples, and not the training."""


class LongestFirst:
    """A sampler whose first indices are replaced by others, once."""

    def __init__(self, sampler: Any, first: list[int]) -> None:
        self.sampler, self.first = sampler, first

    def __iter__(self) -> Iterator[int]:
        for index in self.sampler:
            yield self.first.pop(0) if self.first else index

    def __len__(self) -> int:
        return len(self.sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.sampler, name)


def install(trainer: Any) -> None:
    """Give the longest samples to a Trainer's first updates, and report them or why they are not known."""
    args = trainer.args
    num_passes = int(args.gradient_accumulation_steps)
    num_samples = int(args.train_batch_size) * num_passes * int(args.world_size)
    make = trainer.get_train_dataloader

    @functools.wraps(make)
    def made(*given: Any, **named: Any) -> Any:
        loader = make(*given, **named)
        try:
            found = reorder(loader, num_samples)
        except FAULTS as error:
            found = {"problem": f"the samples could not be looked at ({type(error).__name__})"}
        is_cut = type(getattr(args, "max_length", None)) is int and not getattr(trainer, "padding_free", False)
        if "problem" in found and is_cut:
            found = lengthen(trainer, args.max_length, num_passes)
        report({"event": "longest", "updates": NUM_UPDATES, **found})
        return loader

    trainer.get_train_dataloader = made


def reorder(loader: Any, num_samples: int) -> dict[str, Any]:
    """Have a loader begin with its longest samples, as many as an update has, in each of the first updates."""
    batches = loader.batch_sampler
    while hasattr(batches, "batch_sampler"):  # Accelerate splits it between ranks
        batches = batches.batch_sampler
    if not hasattr(batches, "sampler") or not hasattr(loader.dataset, "__getitem__"):
        return {"problem": "the data is a stream"}
    lengths = lengths_of(loader.dataset)
    longest = sorted(lengths, key=lambda index: -lengths[index])[:num_samples]
    if not longest or not lengths[longest[0]]:
        return {"problem": "nothing in a sample gives its length"}
    if lengths[longest[0]] > min(lengths.values()):
        batches.sampler = LongestFirst(batches.sampler, longest * NUM_UPDATES)
    return {
        "samples": len(longest),
        "length": lengths[longest[0]],
        "shortest": min(lengths.values()),
        "looked_at": len(lengths),
        "of": len(loader.dataset),
    }


def lengths_of(dataset: Any) -> dict[int, int]:
    """Return the lengths of a dataset's samples by index; of a large one, those of a random part."""
    count, begin = len(dataset), time.monotonic()
    found = {}
    for index in SEEDED.sample(range(count), min(count, MOST_SAMPLES)):
        found[index] = length_of(dataset[index])
        if time.monotonic() - begin > MOST_S:
            break
    return found


def length_of(sample: Any) -> int:
    """Return the tokens of a sample, or the characters of its texts; 0 where it has neither."""
    if not hasattr(sample, "keys"):
        return 0
    names = ["input_ids"] if "input_ids" in sample else [name for name in sample if str(name).endswith("_ids")]
    if names:
        return sum(size(sample[name]) for name in names)
    return sum(len(value) for value in (sample[name] for name in sample) if isinstance(value, str))


def size(tokens: Any) -> int:
    """Return the number of tokens in a list or a tensor of them."""
    shape = getattr(tokens, "shape", None)
    return int(shape[-1]) if shape is not None and len(shape) else len(tokens)


def lengthen(trainer: Any, length: int, num_passes: int) -> dict[str, Any]:
    """Repeat the tokens of the first updates up to the length at which samples are cut."""
    step, left = trainer.training_step, [NUM_UPDATES * num_passes]

    @functools.wraps(step)
    def lengthened(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        return step(model, repeated(inputs, length) if left[0] >= 0 else inputs, *args, **kwargs)

    trainer.training_step = lengthened
    return {"length": length, "samples": int(trainer.args.train_batch_size)}


def repeated(inputs: Any, length: int) -> Any:
    """Return a batch whose tokens, and all that has one entry per token, are repeated up to a length."""
    own = inputs["input_ids"].shape
    if len(own) != 2 or own[0] * own[1] == 0 or own[1] >= length:
        return inputs
    times = -(-length // own[1])
    return {
        name: value.repeat(1, times)[:, :length] if tuple(getattr(value, "shape", ())) == tuple(own) else value
        for name, value in inputs.items()
    }
