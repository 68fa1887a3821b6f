"""The shards of a checkpoint: one content per tensor rank and pipeline stage, compared."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_checkpoint.model_shape import count_of
from zenith_checkpoint.output_place import PREFIX, SHARD_NAME, Format, shard_name
from zenith_checkpoint.reading.state_dict import read_state_dict
from zenith_checkpoint.safetensors_file import read_safetensors
from zenith_checkpoint.tensors import ShardContent, StoredTensor, describe
from zenith_tune.errors import UsageError

TORCH_DIST = "torch_dist"
DIST_METADATA = ".metadata"
EXTRA_STATE = re.compile(r"(?:.*\.)?_extra_state[0-9]*", re.DOTALL)
Contents = dict[tuple[int, int], ShardContent]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSet:
    """The content of every shard by tensor rank and stage; the ranks of a stage hold the same names and shapes."""

    folder: Path
    source: str
    """The name of its layout in messages."""
    tp: int
    pp: int
    """Stages; the virtual ones, where each pipeline rank has several."""
    format: Format
    """The format of the output, unless another is asked for."""
    contents: Contents
    place: Path | None = None
    """The folder of its files, where that is one inside the folder."""

    def ranks(self, stage: int, name: str) -> list[StoredTensor]:
        """Return one tensor of a stage as each tensor rank holds it."""
        return [self.contents[tp, stage].tensors[name] for tp in range(self.tp)]

    def names(self, stage: int) -> list[str]:
        """Return the names on a stage, without what Transformer Engine keeps for itself on each rank."""
        return [name for name in self.contents[0, stage].tensors if not EXTRA_STATE.fullmatch(name)]

    @property
    def args(self) -> dict[str, Any]:
        """Megatron-LM's arguments, where it saved them."""
        return self.contents[0, 0].args

    @property
    def padded_for(self) -> int | None:
        """The tensor ranks that its vocabulary was padded for; torch_dist shows them only by Megatron's arguments."""
        return count_of(self.args, "tensor_model_parallel_size") or (None if self.source == TORCH_DIST else self.tp)


def shard_set(folder: Path, source: str, kind: Format, contents: Contents) -> ShardSet:
    """Return the shards of a full grid of ranks; refuse mismatched ones."""
    tp, pp = (1 + max(ranks[axis] for ranks in contents) for axis in (0, 1))
    shards = ShardSet(folder=folder, source=source, tp=tp, pp=pp, format=kind, contents=contents)
    for ranks, content in contents.items():
        if not content.tensors:
            raise UsageError(f"shard {folder / content.name} holds no tensor", hint="copy or save it again")
        _refuse_mismatch(shards, *ranks)
    return shards


def read_shards(folder: Path) -> ShardSet:
    """Find and read the shards that are named after their ranks; refuse missing, extra and mismatched ones."""
    found = _found(folder)
    extensions = sorted({path.suffix[1:] for path in found.values()})
    tp, pp = (1 + max(ranks[axis] for ranks in found) for axis in (0, 1))
    # Lazy on purpose: one file named after rank 999999999 must not make a list of as many.
    missing = next(((t, p) for t in range(tp) for p in range(pp) if (t, p) not in found), None)
    if missing is not None:
        problem = f"{folder} must hold {tp} x {pp} = {tp * pp} shards (TP x PP), but has {len(found)}"
        raise UsageError(f"{problem}: {shard_name(*missing, extensions[0])} is missing")
    if len(extensions) > 1:
        raise UsageError(
            f"the shards of {folder} must be of one kind, but are .bin and .safetensors", hint="leave one out"
        )
    contents = by_stage({ranks: read_file(found[ranks]) for ranks in sorted(found)}, pp)
    return shard_set(folder, f"TP {tp} PP {pp}", Format(extensions[0]), contents)


def by_stage(chunks: dict[tuple[int, int], list[ShardContent]], pp: int) -> Contents:
    """Return the contents by stage: chunk after chunk, each through all pipeline ranks, as virtual stages run."""
    return {(t, chunk * pp + p): each for (t, p), found in chunks.items() for chunk, each in enumerate(found)}


def read_file(path: Path, name: str | None = None) -> list[ShardContent]:
    """Read one file of weights, of either kind."""
    return [read_safetensors(path)] if path.suffix == ".safetensors" else read_state_dict(path, name)


def _found(folder: Path) -> dict[tuple[int, int], Path]:
    listed = sorted(path for path in folder.iterdir() if path.name.startswith(PREFIX))
    found: dict[tuple[int, int], Path] = {}
    for path in listed:
        match = SHARD_NAME.fullmatch(path.name)
        if match is None:
            problem = f"{path.name!r} in {folder} is no shard's name, which is {PREFIX}T_pp_P.bin or .safetensors"
            raise UsageError(problem, hint="move it away")
        ranks = int(match[1]), int(match[2])
        if ranks in found:
            raise UsageError(f"{folder} holds both {found[ranks].name} and {path.name}", hint="move one away")
        found[ranks] = path
    return found


def _refuse_mismatch(shards: ShardSet, tp: int, stage: int) -> None:
    """Refuse a shard that differs in names, types, shapes or nesting from the first one of its stage."""
    first, other = shards.contents.get((0, stage)), shards.contents[tp, stage]
    if first is None:
        raise UsageError(f"{other.name} has more stages than the ranks before it", hint="save them together")
    names = first.name, other.name
    for name in [*first.tensors, *other.tensors]:
        if EXTRA_STATE.fullmatch(name):
            continue
        if name not in first.tensors or name not in other.tensors:
            there, absent = names if name in first.tensors else names[::-1]
            raise UsageError(f"the shards of a stage must hold the same names, but {name!r} is in {there} and not in "
                             f"{absent}: save them together")  # fmt: skip
        a, b = first.tensors[name], other.tensors[name]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            kinds = f"{describe(a)} in {names[0]} and {describe(b)} in {names[1]}"
            raise UsageError(f"the shards of a stage must agree, but {name!r} is {kinds}", hint="save them together")
    if other.wrapper != shards.contents[0, 0].wrapper:
        raise UsageError(
            f"the shards of {shards.folder} must be nested alike, but {names[1]} is not", hint="save them again"
        )
