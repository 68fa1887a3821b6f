"""Checkpoints that any layout can read, whichever wrote them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

from zenith_tune.errors import UsageError
from zenith_tune.mimo.checkpoint_plan import Entry, EntryLoadPlanner, EntrySavePlanner, JsonEntry, TensorEntry
from zenith_tune.mimo.comm.topology import ModuleRole
from zenith_tune.mimo.lost_peer import peers_expected
from zenith_tune.mimo.optimizer.module_optimizer import ModuleOptimizer
from zenith_tune.mimo.trainer import Trainer

MOMENTS = ("exp_avg", "exp_avg_sq")


def save_checkpoint(folder: Path, trainer: Trainer) -> None:
    """Write weights, optimizer state and iteration; every rank of the world calls it and writes its own part."""
    with peers_expected("saving a checkpoint"):
        dcp.save(
            dict(_entries(trainer)),
            storage_writer=dcp.FileSystemWriter(folder),
            planner=EntrySavePlanner(),
        )


def load_checkpoint(folder: Path, trainer: Trainer) -> None:
    """Go on from a checkpoint, whatever layout wrote it; every rank of the world calls it."""
    if not (folder / ".metadata").is_file():
        raise UsageError(f"{folder} holds no finished checkpoint: it has no file .metadata.")
    try:
        with peers_expected("loading a checkpoint"):
            dcp.load(dict(_entries(trainer)), storage_reader=dcp.FileSystemReader(folder), planner=EntryLoadPlanner())
    except dcp.CheckpointException as error:
        reasons = sorted({str(failure[0]) for failure in error.failures.values()})
        raise UsageError(f"cannot load {folder}: {reasons[0]}") from error


def _entries(trainer: Trainer) -> Iterator[tuple[str, Entry]]:
    topology = trainer.model.topology

    def take_iteration(value: dict[str, int]) -> None:
        trainer.iteration = value["iteration"]

    yield (
        "trainer",
        JsonEntry(value={"iteration": trainer.iteration}, take=take_iteration, is_written_here=topology.rank == 0),
    )
    for name, optimizer in trainer.optimizer.active.items():
        yield from _module_entries(name, topology.roles[name], optimizer)


def _module_entries(module: str, role: ModuleRole, optimizer: ModuleOptimizer) -> Iterator[tuple[str, Entry]]:
    is_first = role.grid.rank_at() == role.rank_at()
    yield (
        f"optimizer/{module}",
        JsonEntry(value=optimizer.settings(), take=optimizer.take_settings, is_written_here=is_first),
    )
    for name, parameter in optimizer.parameters.items():
        is_written = role.dp_rank == 0 and _is_own_box(parameter, role)
        yield (
            f"model/{module}/{name}",
            TensorEntry(tensor=parameter, shard=parameter.shard, is_written_here=is_written),
        )
    for piece in optimizer.pieces:
        is_written = (optimizer.is_sharded or role.dp_rank == 0) and _is_own_box(piece.parameter, role)
        state = optimizer.state_of(piece)
        for moment in MOMENTS:
            entry = TensorEntry(tensor=state[moment], shard=piece.shard, is_written_here=is_written)
            yield f"{moment}/{module}/{piece.name}", entry


def _is_own_box(parameter: Any, role: ModuleRole) -> bool:
    """Return whether no earlier rank of the tensor-parallel group holds the same box."""
    return role.tp_rank == 0 or not parameter.shard.is_whole
