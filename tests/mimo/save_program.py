"""Saves that fail, and checkpoints whose parts disagree; what two ranks found, printed as JSON."""

from __future__ import annotations

import json
import resource
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.mimo.checkpoint_program import spoil
from tests.mimo.comparison import make_trainer
from tests.mimo.forked_world import run_world
from tests.mimo.reference import samples_of_step
from tests.mimo.small_models import VISION_LANGUAGE
from zenith_mimo.checkpoint import load_checkpoint, save_checkpoint
from zenith_mimo.checkpoint_folder import latest_checkpoint
from zenith_mimo.trainer import Trainer
from zenith_tune.errors import ZenithTuneError

SMALL_FILE = 20_000


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.model.parameters()]


def problem_of(attempt: Callable[[], None]) -> str:
    try:
        attempt()
    except ZenithTuneError as error:
        return str(error)
    return "none"


def loaded(folder: Path, trainer: Trainer, expected: list[torch.Tensor]) -> list[Any]:
    """Return the iteration that a folder holds, and whether its weights are those expected."""
    spoil(trainer)
    load_checkpoint(folder, trainer)
    found = weights(trainer)
    return [trainer.iteration, all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))]


def saves_of(folder: Path) -> int:
    return len(list(folder.glob("iter_*")))


def save_with_full_disk(folder: Path, trainer: Trainer) -> str:
    """Save with one rank that can write only the beginning of its file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if dist.get_rank() == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL_FILE, limits[1]))
    problem = problem_of(lambda: save_checkpoint(folder, trainer))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    return problem


def work(root: Path) -> dict[str, Any]:
    trainer = make_trainer("2 ranks", torch.float64)
    folder, copy, old = root / "saved", root / "copy", root / "old"

    def step() -> None:
        trainer.step(samples_of_step(VISION_LANGUAGE, trainer.iteration))

    step()
    save_checkpoint(folder, trainer)
    first = weights(trainer)
    step()
    found: dict[str, Any] = {"failed": save_with_full_disk(folder, trainer), "left": saves_of(folder)}
    found["kept"] = loaded(folder, trainer, first)
    if dist.get_rank() == 0:
        shutil.copytree(latest_checkpoint(folder), old)
        shutil.copytree(folder, copy)
    step()
    save_checkpoint(folder, trainer)
    found["replaced"], found["remaining"] = loaded(folder, trainer, weights(trainer)), saves_of(folder)
    found["of version 0.2"] = loaded(old, trainer, first)
    if dist.get_rank() == 0:
        shutil.copy(latest_checkpoint(folder) / "__1_0.distcp", latest_checkpoint(copy))
    dist.barrier()
    found["mixed"] = problem_of(lambda: load_checkpoint(copy, trainer))
    if dist.get_rank() == 0:
        (latest_checkpoint(copy) / "__1_0.distcp").write_bytes(b"")
    dist.barrier()
    found["damaged"] = problem_of(lambda: load_checkpoint(copy, trainer))
    if dist.get_rank() == 0:
        (latest_checkpoint(copy) / ".metadata").write_bytes(b"")
    dist.barrier()
    found["without contents"] = problem_of(lambda: load_checkpoint(copy, trainer))
    (root / "file").touch()
    found["no folder"] = problem_of(lambda: save_checkpoint(root / "file", trainer))
    trainer.close()
    return found


if __name__ == "__main__":
    print(json.dumps(run_world(2, lambda: work(Path(sys.argv[1])))))
