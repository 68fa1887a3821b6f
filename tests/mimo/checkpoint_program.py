"""Save in every layout, load in others, train on, and print the errors as JSON."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.mimo.checkpoint_pairs import PAIRS, is_sharded
from tests.mimo.comparison import Steps, compared_steps, make_trainer, relative_error, worst_error
from tests.mimo.forked_world import run_world
from tests.mimo.reference import one_process, samples_of_step
from tests.mimo.small_models import CHECKPOINT_LAYOUTS, LAYOUTS, VISION_LANGUAGE
from zenith_mimo.checkpoint import load_checkpoint, save_checkpoint
from zenith_mimo.tensor_parallel import TensorParallel
from zenith_mimo.trainer import Trainer
from zenith_tune.errors import UsageError

DTYPE = torch.float64
SAVED_AFTER = 2

MOMENTS = ("exp_avg", "exp_avg_sq")


def folder_of(root: Path, name: str) -> Path:
    return root / name.replace(" ", "-").replace(",", "")


def save(root: Path, names: list[str]) -> dict[str, Any]:
    """Train two steps in each layout, and save."""
    for name in names:
        trainer = make_trainer(name, DTYPE, use_distributed_optimizer=is_sharded(name))
        for step in range(SAVED_AFTER):
            trainer.step(samples_of_step(VISION_LANGUAGE, step))
        save_checkpoint(folder_of(root, name), trainer)
        trainer.close()
    return {}


def load(root: Path, names: list[str], reference: Steps) -> dict[str, Any]:
    """Load in each layout what each wrote, over other weights and another learning rate, and train on."""
    results = {}
    for name in names:
        trainer = make_trainer(name, DTYPE, seed=99, use_distributed_optimizer=is_sharded(name), lr=0.7)
        for saved_by in (one for one, other in PAIRS if other == name):
            spoil(trainer)
            load_checkpoint(folder_of(root, saved_by), trainer)
            result: dict[str, Any] = {"iteration": trainer.iteration, "errors": state_errors(trainer, reference)}
            result["settings"] = [optimizer.settings() for optimizer in trainer.optimizer.active.values()]
            next_step = range(trainer.iteration, trainer.iteration + 1)
            result["errors"].update(compared_steps(trainer, reference, next_step)["errors"])
            results[f"{saved_by} -> {name}"] = result
        trainer.close()
    return results


def spoil(trainer: Trainer) -> None:
    """Overwrite all that a checkpoint holds, so that nothing is right but for what is loaded."""
    trainer.iteration = 77
    for optimizer in trainer.optimizer.active.values():
        for parameter in optimizer.parameters.values():
            parameter.detach().fill_(0.5)
        for piece in optimizer.pieces:
            for moment in MOMENTS:
                optimizer.state_of(piece)[moment].fill_(0.5)


def state_errors(trainer: Trainer, reference: Steps) -> dict[str, float]:
    """Return the errors of the weights and of Adam's moments against one process after as many steps."""
    expected = reference[trainer.iteration - 1]
    errors = {"loaded weights": worst_error(trainer, expected["weights"], grads=False)}
    for moment in MOMENTS:
        errors[f"loaded {moment}"] = max(
            relative_error(
                optimizer.state_of(piece)[moment], piece.shard.cut(expected[moment][f"{module}/{piece.name}"])
            )
            for module, optimizer in trainer.optimizer.active.items()
            for piece in optimizer.pieces
        )
    return errors


def refusals(root: Path) -> dict[str, Any]:
    """Meet what cannot be loaded, on one of the ranks or on both."""
    trainer = make_trainer("2 ranks", DTYPE)
    found = {"nothing there": refusal(lambda: load_checkpoint(root / "none", trainer))}
    language = trainer.optimizer.active.get("language")
    if language is not None:
        language.parameters["surplus"] = TensorParallel(dtype=DTYPE).parameter(3)
    saved = folder_of(root, "2 ranks")
    found["one parameter more"] = refusal(lambda: load_checkpoint(saved, trainer))
    if language is not None:
        del language.parameters["surplus"], language.trained["embedding.position"]
        language.pieces = [piece for piece in language.pieces if piece.name != "embedding.position"]
        language.parameters["embedding.position"] = TensorParallel(dtype=DTYPE).parameter(3, 32)
    found["another shape"] = refusal(lambda: load_checkpoint(saved, trainer))
    trainer.close()
    return found


def refusal(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except UsageError as error:
        return str(error)
    return "loaded"


def main() -> None:
    root = Path(sys.argv[1])
    reference = one_process(VISION_LANGUAGE, DTYPE, SAVED_AFTER + 1)
    worlds = {size: [name for name in CHECKPOINT_LAYOUTS if LAYOUTS[name][1].world_size == size] for size in (2, 4, 8)}
    for size, names in worlds.items():
        run_world(size, functools.partial(save, root, names))
    loads: dict[str, list[Any]] = {}
    for size, names in worlds.items():
        ranks = run_world(size, functools.partial(load, root, names, reference))
        loads.update({key: [rank[key] for rank in ranks] for key in ranks[0]})
    print(json.dumps({"loads": loads, "refusals": run_world(2, functools.partial(refusals, root))}))


if __name__ == "__main__":
    main()
