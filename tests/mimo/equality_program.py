"""Train the layouts named, compare each step with one process, and print the largest relative errors as JSON."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from tests.mimo.comparison import Steps, compared_steps, make_trainer
from tests.mimo.forked_world import run_world
from tests.mimo.reference import NUM_STEPS, OPTIMIZERS, USUAL, one_process
from tests.mimo.small_models import LAYOUTS, MODELS

DTYPES = {"float32": torch.float32, "float64": torch.float64, "float32 usual eps": torch.float32}
STEPS = {"float32": NUM_STEPS, "float64": 2, "float32 usual eps": 2}
"""Two show an update and what is computed with it; in single precision all of them must stay near."""


def precisions(name: str) -> list[str]:
    """Return how a layout is trained; in single precision only on few ranks, whose rounding is that of many."""
    return [one for one in DTYPES if one == "float64" or LAYOUTS[name][1].world_size <= 4]


@contextlib.contextmanager
def counted_sends(group: Any) -> Iterator[list[int]]:
    """Note the ranks that this one sends to over a group."""
    found: list[int] = []
    isend = dist.isend

    def noting(tensor: Any, rank: int, **options: Any) -> Any:
        if options["group"] is group:
            found.append(rank)
        return isend(tensor, rank, **options)

    dist.isend = noting
    yield found
    dist.isend = isend


def train_layouts(names: list[str], references: dict[tuple[str, str], Steps]) -> dict[str, Any]:
    """Train each layout on this rank in each precision."""
    results = {}
    for name in names:
        for precision in precisions(name):
            dtype = DTYPES[precision]
            eps = (USUAL if "usual" in precision else OPTIMIZERS[dtype]).eps
            trainer = make_trainer(name, dtype, eps=eps)
            reference = references[LAYOUTS[name][0], precision]
            with counted_sends(trainer.model.topology.backward_group) as sent:
                results[f"{name}/{precision}"] = compared_steps(trainer, reference, range(STEPS[precision]))
            results[f"{name}/{precision}"]["gradients sent"] = len(sent)
            trainer.close()
    return results


def main() -> None:
    wanted = sys.argv[1:]
    references = {
        (model, precision): one_process(
            MODELS[model], dtype, STEPS[precision], optimizer=USUAL if "usual" in precision else None
        )
        for model in sorted({LAYOUTS[name][0] for name in wanted})
        for precision, dtype in DTYPES.items()
    }
    found: dict[str, list[Any]] = {}
    for size in sorted({LAYOUTS[name][1].world_size for name in wanted}):
        names = [name for name in wanted if LAYOUTS[name][1].world_size == size]
        ranks = run_world(size, functools.partial(train_layouts, names, references))
        found.update({key: [rank[key] for rank in ranks] for key in ranks[0]})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
