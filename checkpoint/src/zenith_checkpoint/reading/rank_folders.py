"""Reads the folders that Megatron-LM itself writes in its legacy format: iter_N/mp_rank_TT[_PPP][_EEE]/*.pt."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from zenith_checkpoint.model_checks import refuse_two_runs
from zenith_checkpoint.model_shape import count_of
from zenith_checkpoint.output_place import Format
from zenith_checkpoint.reading.shard_set import EXTRA_STATE, Contents, ShardSet, by_stage, shard_set
from zenith_checkpoint.reading.state_dict import read_state_dict
from zenith_checkpoint.split_rules import EMBEDDING, expert_index, is_expert, with_expert
from zenith_checkpoint.tensors import ShardContent, StoredTensor, refuse_differences
from zenith_tune.errors import UsageError

TRACKER = "latest_checkpointed_iteration.txt"
RANK_FOLDER = re.compile(r"mp_rank_([0-9]{2,6})(?:_([0-9]{3,6}))?(?:_([0-9]{3,6}))?")
ITERATION_FOLDER = re.compile(r"iter_[0-9]{7,}|release")
WEIGHTS = ("model_optim_rng.pt", "model_rng.pt")
SHARDED_OPTIMIZER = "distrib_optim.pt"

Ranks = tuple[int, int, int]


def iteration_folder(folder: Path) -> Path:
    """Return the folder of the last iteration, or the folder itself where it holds no iterations."""
    tracker = folder / TRACKER
    if tracker.is_file():
        text = tracker.read_bytes()[:40].decode(errors="replace").strip()
        name = text if text == "release" else f"iter_{int(text):07d}" if text.isdecimal() else ""
        if not name or not (folder / name).is_dir():
            problem = f"{tracker} names iteration {text!r}, but {folder} has no folder {name or 'of that name'!r}"
            raise UsageError(problem, hint="give the folder of one iteration")
        return folder / name
    saved = sorted(path for path in folder.iterdir() if ITERATION_FOLDER.fullmatch(path.name))
    return saved[-1] if saved else folder


def has_rank_folders(folder: Path) -> bool:
    """Tell whether a folder holds one of the legacy format's folders."""
    return any(RANK_FOLDER.fullmatch(path.name) and path.is_dir() for path in folder.iterdir())


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFolders:
    """The contents of each rank's file by the name of its folder: one for each virtual stage."""

    folder: Path
    paths: dict[str, Path]
    contents: dict[str, list[ShardContent]]
    grid: Grid

    @classmethod
    def open(cls, folder: Path) -> RankFolders:
        """Read the files of all ranks."""
        paths = {path.name: _weights(path) for path in sorted(folder.iterdir()) if RANK_FOLDER.fullmatch(path.name)}
        read = {name: read_state_dict(path, name) for name, path in paths.items()}
        grid = Grid.of({name: found[0] for name, found in read.items()})
        return cls(folder=folder, paths=paths, contents=read, grid=grid)

    def joined(self, contents: dict[str, list[ShardContent]], *, are_weights: bool) -> Contents:
        """Return the contents by tensor rank and stage, with the experts of all expert ranks under their numbers."""
        grid = self.grid
        chunks = {grid.ranks(name): each for name, each in contents.items()}
        joined: dict[tuple[int, int], list[ShardContent]] = {}
        for t in range(grid.tp):
            for p in range(grid.pp):
                found = {ranks[2]: each for ranks, each in chunks.items() if ranks[:2] == (t, p)}
                if not found:
                    missing = f"tensor rank {t} of stage {p}"
                    problem = f"{self.folder} must hold {grid.shown}, but {missing} is missing"
                    raise UsageError(problem, hint="copy all of its mp_rank folders")
                experts = {ranks[2]: each for ranks, each in chunks.items() if grid.has_experts_of(ranks, t, p)}
                joined[t, p] = _with_experts(found, experts, grid, are_weights=are_weights)
        return by_stage(joined, grid.pp)


def read_rank_folders(folder: Path) -> ShardSet:
    """Read the weights of all ranks; those of expert ranks are put together, under the experts' numbers."""
    ranks = RankFolders.open(folder)
    refuse_two_runs([content for found in ranks.contents.values() for content in found])
    contents = ranks.joined(ranks.contents, are_weights=True)
    if any((path.parent / SHARDED_OPTIMIZER).exists() for path in ranks.paths.values()):
        contents[0, 0] = replace(contents[0, 0], left_out=(*contents[0, 0].left_out, SHARDED_OPTIMIZER))
    return shard_set(folder, ranks.grid.shown, Format.MEGATRON, contents)


def _weights(folder: Path) -> Path:
    found = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not found:
        raise UsageError(f"{folder} must hold {WEIGHTS[0]}, but does not", hint="copy all of the checkpoint's files")
    return found[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The degrees of parallelism that the folders are named after."""

    tp: int
    pp: int
    ep: int
    has_stages: bool
    whole_experts: bool

    @classmethod
    def of(cls, contents: dict[str, ShardContent]) -> Grid:
        """Return the degrees: by the folders' names, and by what they hold where names of two numbers leave it open."""
        names, first = list(contents), next(iter(contents.values()))
        parts = [[int(each) for each in name.split("_")[2:]] for name in names]
        num_parts = max(map(len, parts))
        if any(len(each) != num_parts for each in parts):
            raise UsageError(f"rank folders must be named alike, but are {names[0]!r} to {names[-1]!r}")
        has_stages = num_parts == 3 or (num_parts == 2 and not _are_expert_ranks(list(contents.values())))
        largest = [1 + max(each[axis] for each in parts) for axis in range(num_parts)]
        stages, rest = (largest[1], largest[2:]) if has_stages else (1, largest[1:])
        expert_tp = count_of(first.args, "expert_tensor_parallel_size") or largest[0]
        if expert_tp not in (1, largest[0]):
            problem = f"experts are split over {expert_tp} of {largest[0]} tensor ranks, which is not supported"
            raise UsageError(problem, hint=f"save with --expert-tensor-parallel-size 1 or {largest[0]}")
        whole = expert_tp != largest[0]
        return cls(tp=largest[0], pp=stages, ep=rest[0] if rest else 1, has_stages=has_stages, whole_experts=whole)

    @property
    def shown(self) -> str:
        """The degrees for a person."""
        return f"TP {self.tp} PP {self.pp}" + (f" EP {self.ep}" if self.ep > 1 else "")

    def ranks(self, name: str) -> Ranks:
        """Return the tensor rank, the stage and the expert rank of a folder."""
        t, *rest = [int(each) for each in name.split("_")[2:]]
        p = rest.pop(0) if self.has_stages else 0
        return t, p, rest[0] if rest else 0

    def has_experts_of(self, ranks: Ranks, t: int, p: int) -> bool:
        """Tell whether a folder's experts belong to a tensor rank: its own, or any rank's where experts are whole."""
        return ranks[1] == p and (self.whole_experts or ranks[0] == t)


def _are_expert_ranks(contents: list[ShardContent]) -> bool:
    """Tell whether folders are numbered by expert ranks: by Megatron's arguments, or as each holds all but experts."""
    num_ranks = count_of(contents[0].args, "expert_model_parallel_size")
    if num_ranks is not None:
        return num_ranks > 1
    kept = [{name for name in each.tensors if not is_expert(name)} for each in contents]
    has_table = any(name.endswith(EMBEDDING) for name in kept[0])
    return has_table and len(kept[0]) < len(contents[0].tensors) and all(each == kept[0] for each in kept)


def _with_experts(
    found: dict[int, list[ShardContent]],
    experts: dict[int, list[ShardContent]],
    grid: Grid,
    *,
    are_weights: bool,
) -> list[ShardContent]:
    """Return the contents of one tensor rank and stage with the experts of all expert ranks."""
    first = found[min(found)]
    if grid.ep == 1 and not grid.whole_experts:
        return first
    if sorted(experts) != list(range(grid.ep)):
        problem = f"{first[0].name} must have its like of {grid.ep} expert ranks, but {len(experts)} are there"
        raise UsageError(problem, hint="copy all of its mp_rank folders")
    for other in found.values() if are_weights else ():
        for mine, theirs in zip(first, other, strict=True):
            _refuse_other_weights(mine, theirs)
    joined = []
    for chunk, content in enumerate(first):
        tensors = {name: each for name, each in content.tensors.items() if not is_expert(name)}
        for rank in range(grid.ep):
            tensors |= _renumbered(experts[rank][chunk].tensors, rank)
        joined.append(replace(content, tensors=tensors))
    return joined


def _refuse_other_weights(mine: ShardContent, theirs: ShardContent) -> None:
    """Refuse expert ranks whose other weights differ; of those, which all ranks hold, the vectors are compared."""
    for name, tensor in mine.tensors.items():
        if is_expert(name) or EXTRA_STATE.fullmatch(name):
            continue
        other = theirs.tensors.get(name)
        if other is None or (other.dtype, other.shape) != (tensor.dtype, tensor.shape):
            raise UsageError(f"expert ranks must hold the same {name!r}, but {mine.name} and {theirs.name} differ")
        if len(tensor.shape) == 1:
            refuse_differences([tensor, other], "expert")


def _renumbered(tensors: dict[str, StoredTensor], rank: int) -> dict[str, StoredTensor]:
    """Return the experts of one rank, which counts them from 0, under the numbers that they have among all."""
    numbers = {name: number for name in tensors if is_expert(name) and (number := expert_index(name)) is not None}
    num_local = 1 + max(numbers.values(), default=-1)
    renamed = {name: with_expert(name, rank * num_local + number) for name, number in numbers.items()}
    return {new: replace(tensors[name], name=new) for name, new in renamed.items()}
