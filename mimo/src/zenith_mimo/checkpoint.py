"""Checkpoints that any layout can read, whichever wrote them: boxes of whole tensors, by their names in the model.

A checkpoint knows nothing of the layout that wrote it: it holds each tensor in the pieces in which the ranks had it,
and a rank of another layout reads the parts of those pieces that make up its own.
"""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    BytesIOWriteData,
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from zenith_mimo.checkpoint_folder import latest_checkpoint, new_save_name, switch_to
from zenith_mimo.modules import persistent_buffers
from zenith_mimo.optimizer import ModuleOptimizer
from zenith_mimo.random_state import random_state, restore_random_state
from zenith_mimo.tensor_parallel import LogicalShard, shard_of
from zenith_mimo.topology import ModuleRole, peers_expected
from zenith_mimo.trainer import Trainer
from zenith_tune.errors import SystemFaultError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """This rank's box of a tensor, read in place; of the ranks that hold the same box one writes it."""

    tensor: Tensor
    shard: LogicalShard
    is_written_here: bool

    @property
    def chunk(self) -> ChunkStorageMetadata:
        """The box as torch's checkpoints describe it."""
        return ChunkStorageMetadata(offsets=torch.Size(self.shard.offsets), sizes=torch.Size(self.shard.sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueEntry:
    """A few plain values that one rank writes."""

    value: Any
    take: Callable[[Any], None]
    is_written_here: bool


Entry = TensorEntry | ValueEntry


_DAMAGE = (ValueError, RuntimeError, EOFError, pickle.UnpicklingError)
"""What reading a damaged file raises."""


class EntrySavePlanner(SavePlanner):
    """The plan of writing a rank's entries."""

    def set_up_planner(
        self, state_dict: Mapping[str, Entry], storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        """Take the entries."""
        self._entries = state_dict

    def create_local_plan(self) -> SavePlan:
        """Return what this rank writes."""
        written = {name: entry for name, entry in self._entries.items() if entry.is_written_here}
        return SavePlan([_write_item(name, entry) for name, entry in written.items()])

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return all ranks' plans and the table of contents; every number of every tensor must be in it once."""
        plans, metadata = create_default_global_save_plan(all_plans)
        for name, found in metadata.state_dict_metadata.items():
            if isinstance(found, TensorStorageMetadata):
                volume = sum(math.prod(chunk.sizes) for chunk in found.chunks)
                assert volume == math.prod(found.size), f"{name}: {volume} numbers written of {list(found.size)}"
        return plans, metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Return the plan as it is."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Tensor | io.BytesIO:
        """Return the data of an entry."""
        entry = self._entries[write_item.index.fqn]
        return io.BytesIO(_encode(entry)) if isinstance(entry, ValueEntry) else entry.tensor.detach()


class EntryLoadPlanner(LoadPlanner):
    """The plan of reading a rank's entries from the pieces that were saved."""

    def set_up_planner(
        self, state_dict: Mapping[str, Entry], metadata: Metadata | None = None, is_coordinator: bool = False
    ) -> None:
        """Take the entries and the table of contents."""
        assert metadata is not None
        self._entries, self._contents = state_dict, metadata.state_dict_metadata

    def create_local_plan(self) -> LoadPlan:
        """Return what this rank reads."""
        return LoadPlan([item for name, entry in self._entries.items() for item in self._read_items(name, entry)])

    def create_global_plan(self, global_plan: list[LoadPlan]) -> list[LoadPlan]:
        """Return all ranks' plans as they are."""
        return global_plan

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """Return the plan as it is."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Hand plain values to their taker."""
        name = read_item.dest_index.fqn
        entry = self._entries[name]
        assert isinstance(entry, ValueEntry)
        try:
            found = _decode(value.getvalue())
        except _DAMAGE as error:
            raise UsageError(f"the file that holds {name!r} is damaged.") from error
        entry.take(found)

    def resolve_tensor(self, read_item: ReadItem) -> Tensor:
        """Return the part of this rank's tensor that the piece fills."""
        entry = self._entries[read_item.dest_index.fqn]
        assert isinstance(entry, TensorEntry)
        place = zip(read_item.dest_offsets, read_item.lengths, strict=True)
        return entry.tensor.detach()[tuple(slice(begin, begin + length) for begin, length in place)]

    def commit_tensor(self, read_item: ReadItem, tensor: Tensor) -> None:
        """Do nothing: the tensor was filled in place."""

    def _read_items(self, name: str, entry: Entry) -> list[ReadItem]:
        found = self._contents.get(name)
        if found is None:
            raise UsageError(
                f"the checkpoint has no {name!r}: it is of another model, or had that part frozen",
                hint="load its weights only (--finetune), and train from there.",
            )
        if isinstance(entry, ValueEntry):
            assert isinstance(found, BytesStorageMetadata)
            whole = MetadataIndex(name)
            return [ReadItem(LoadItemType.BYTE_IO, whole, torch.Size([0]), whole, torch.Size([0]), torch.Size([0]))]
        if tuple(found.size) != entry.shard.shape:
            raise UsageError(
                f"{name!r} has the shape {list(entry.shard.shape)} in the model and {list(found.size)} in the "
                f"checkpoint: it is of another model."
            )
        items: list[ReadItem] = create_read_items_for_chunk_list(name, found, [entry.chunk])
        return items


def _write_item(name: str, entry: Entry) -> WriteItem:
    if isinstance(entry, ValueEntry):
        data = BytesIOWriteData(nbytes=len(_encode(entry)))
        return WriteItem(index=MetadataIndex(name), type=WriteItemType.BYTE_IO, bytes_io_data=data)
    tensor_data = TensorWriteData(
        chunk=entry.chunk,
        properties=TensorProperties.create_from_tensor(entry.tensor.detach()),
        size=torch.Size(entry.shard.shape),
    )
    index = MetadataIndex(name, entry.chunk.offsets)
    return WriteItem(index=index, type=WriteItemType.SHARD, tensor_data=tensor_data)


def _encode(entry: ValueEntry) -> bytes:
    written = io.BytesIO()
    torch.save(entry.value, written)
    return written.getvalue()


def _decode(data: bytes) -> Any:
    # Up to version 0.2 values were written as JSON.
    return json.loads(data) if data[:1] == b"{" else torch.load(io.BytesIO(data), weights_only=True)


TRAINER = "trainer"
MODEL, RANDOM = "model/", "random/"
STAMP = "save/"
"""Begins the names of the entries, one for each rank that wrote, that name the save they belong to."""


def save_checkpoint(folder: Path, trainer: Trainer) -> None:
    """Write all that a training needs to continue; every rank of the world calls it and writes its own part.

    The folder's last checkpoint stays until this one is whole.
    """
    rank = trainer.model.topology.rank
    with peers_expected("saving a checkpoint"):
        name: str = _on_first_rank(folder, trainer, lambda: new_save_name(trainer.iteration))
        stamp = ValueEntry(value=name, take=lambda _: None, is_written_here=True)
        entries = {f"{STAMP}{rank}": stamp, **dict(_entries(trainer))}
        try:
            dcp.save(entries, storage_writer=dcp.FileSystemWriter(folder / name), planner=EntrySavePlanner())
        except dcp.CheckpointException as error:
            raise _unsaved(folder, _first_failure(error)) from error
        _on_first_rank(folder, trainer, lambda: switch_to(folder, name))


def load_checkpoint(folder: Path, trainer: Trainer, *, weights_only: bool = False) -> None:
    """Continue from a checkpoint, whatever layout wrote it; every rank of the world calls it.

    With `weights_only` it is where a new training begins, which may train other parts: nothing but the model is read.
    Random numbers are continued in the layout that wrote the checkpoint.
    """
    found = latest_checkpoint(folder)
    stamps: set[str] = set()
    about: dict[str, Any] = {}

    def entries() -> dict[str, Entry]:
        if weights_only:
            return {name: entry for name, entry in _entries(trainer) if name.startswith(MODEL)}
        is_same_layout = about.get("layout") == _layout_of(trainer)
        return {name: entry for name, entry in _entries(trainer) if is_same_layout or not name.startswith(RANDOM)}

    def headers(contents: Mapping[str, Any]) -> dict[str, Entry]:
        names = [name for name in contents if name.startswith(STAMP)]
        return {TRAINER: _reader(about.update), **{name: _reader(stamps.add) for name in names}}

    with peers_expected("loading a checkpoint"):
        _read(found, headers)
        if len(stamps) > 1:
            raise UsageError(f"cannot load {found}: its files are of different saves, {', '.join(sorted(stamps))}.")
        _read(found, lambda _: entries())
        for optimizer in trainer.optimizer.active.values():
            optimizer.write_back()


def _reader(take: Callable[[Any], None]) -> ValueEntry:
    return ValueEntry(value=None, take=take, is_written_here=False)


def _read(folder: Path, entries_of: Callable[[Mapping[str, Any]], dict[str, Entry]]) -> None:
    """Fill the entries that are wanted of a checkpoint with these contents."""
    reader = dcp.FileSystemReader(folder)
    try:
        contents = reader.read_metadata().state_dict_metadata
    except _DAMAGE as error:
        raise UsageError(f"cannot load {folder}: its file .metadata is damaged.") from error
    try:
        entries = entries_of(contents)
        dcp.load(entries, storage_reader=reader, planner=EntryLoadPlanner())
    except dcp.CheckpointException as error:
        raise UsageError(f"cannot load {folder}: {_first_failure(error)}") from error


def _on_first_rank(folder: Path, trainer: Trainer, work: Callable[[], Any]) -> Any:
    """Do something on one rank, and return its result on all."""
    outcome: list[Any] = [None, None]
    if trainer.model.topology.rank == 0:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            outcome[0] = work()
        except OSError as error:
            outcome[1] = f"rank 0: {error}"
    dist.broadcast_object_list(outcome, src=0)
    result, problem = outcome
    if problem:
        raise _unsaved(folder, problem)
    return result


def _unsaved(folder: Path, reason: str) -> SystemFaultError:
    return SystemFaultError(
        f"no checkpoint was saved to {folder} ({reason}): what was saved there before is unchanged."
    )


def _first_failure(error: dcp.CheckpointException) -> str:
    """Return the first line of the lowest rank's failure."""
    rank, (failure, _) = min(error.failures.items())
    reason = (str(failure).strip().splitlines() or [type(failure).__name__])[0]
    return reason if isinstance(failure, UsageError) else f"rank {rank}: {reason}"


def _entries(trainer: Trainer) -> Iterator[tuple[str, Entry]]:
    model, topology = trainer.model, trainer.model.topology

    def take(value: dict[str, Any]) -> None:
        trainer.iteration = value["iteration"]
        trainer.consumed_samples = value.get("consumed_samples", trainer.iteration * trainer.global_batch_size)

    value = {
        "iteration": trainer.iteration,
        "consumed_samples": trainer.consumed_samples,
        "layout": _layout_of(trainer),
    }
    yield TRAINER, ValueEntry(value=value, take=take, is_written_here=topology.rank == 0)
    yield (
        f"{RANDOM}{topology.rank}",
        ValueEntry(value=random_state(model.device), take=restore_random_state, is_written_here=True),
    )
    for name, optimizer in trainer.optimizer.active.items():
        yield from _module_entries(name, topology.roles[name], optimizer)
        for buffer_name, buffer in persistent_buffers(model.parts[name]).items():
            shard = shard_of(buffer)
            is_written = topology.roles[name].dp_rank == 0 and _is_own_box(buffer, topology.roles[name])
            yield f"{MODEL}{name}/{buffer_name}", TensorEntry(tensor=buffer, shard=shard, is_written_here=is_written)


def _layout_of(trainer: Trainer) -> dict[str, str]:
    return {name: str(layout) for name, layout in trainer.model.topology.layout.modules.items()}


def _module_entries(module: str, role: ModuleRole, optimizer: ModuleOptimizer) -> Iterator[tuple[str, Entry]]:
    is_first = role.grid.rank_at() == role.rank_at()
    optimizer.take_changes()
    yield (
        f"optimizer/{module}",
        ValueEntry(value=optimizer.settings(), take=optimizer.take_settings, is_written_here=is_first),
    )
    for name, parameter in optimizer.parameters.items():
        if name not in optimizer.trained:
            is_written = role.dp_rank == 0 and _is_own_box(parameter, role)
            yield (
                f"{MODEL}{module}/{name}",
                TensorEntry(tensor=parameter, shard=parameter.shard, is_written_here=is_written),
            )
    for piece in optimizer.pieces:
        is_written = (optimizer.is_sharded or role.dp_rank == 0) and _is_own_box(piece.parameter, role)
        # Weights in the precision in which they are updated, so that a run of another precision can go on from them.
        for kind, tensor in {"model": piece.weight, **optimizer.moments_of(piece)}.items():
            entry = TensorEntry(tensor=tensor, shard=piece.shard, is_written_here=is_written)
            yield f"{kind}/{module}/{piece.name}", entry


def _is_own_box(tensor: Tensor, role: ModuleRole) -> bool:
    """Return whether no earlier rank of the replica holds the same box."""
    return not role.repeats(tensor) and (role.tp_rank == 0 or not shard_of(tensor).is_whole)
