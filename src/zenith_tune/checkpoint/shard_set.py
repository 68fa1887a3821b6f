"""The shards of a checkpoint: one file per tensor rank and pipeline stage, found, read and compared."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zenith_tune.checkpoint.bin_file import read_bin
from zenith_tune.checkpoint.output_place import PREFIX, SHARD_NAME, shard_name
from zenith_tune.checkpoint.safetensors_shards import read_safetensors
from zenith_tune.checkpoint.tensor_view import ShardContent, StoredTensor, describe
from zenith_tune.errors import UsageError

EXTRA_STATE = "_extra_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSet:
    """Hold the content of every shard by tensor rank and stage; the ranks of a stage hold the same names and shapes."""

    folder: Path
    tp: int
    pp: int
    extension: str
    contents: dict[tuple[int, int], ShardContent]

    def ranks(self, stage: int, name: str) -> list[StoredTensor]:
        """Return one tensor of a stage as each tensor rank holds it."""
        return [self.contents[tp, stage].tensors[name] for tp in range(self.tp)]

    def names(self, stage: int) -> list[str]:
        """Return the names on a stage, without what Transformer Engine keeps for itself on each rank."""
        names = self.contents[0, stage].tensors
        return [name for name in names if name.rpartition(".")[2] != EXTRA_STATE]


def read_shards(folder: Path) -> ShardSet:
    """Find and read the shards of a folder; refuse missing, extra and mismatched ones."""
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
    contents = {ranks: _read(found[ranks]) for ranks in sorted(found)}
    shards = ShardSet(folder=folder, tp=tp, pp=pp, extension=extensions[0], contents=contents)
    for ranks in contents:
        _refuse_mismatch(shards, *ranks)
    return shards


def _found(folder: Path) -> dict[tuple[int, int], Path]:
    try:
        listed = sorted(path for path in folder.iterdir() if path.name.startswith(PREFIX))
    except OSError as error:
        raise UsageError(f"{str(folder)!r} is no folder of shards ({error.strerror})", hint="give the folder") from None
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
    if not found:
        raise UsageError(
            f"{folder} holds no shards, named {PREFIX}T_pp_P.bin or .safetensors", hint="give their folder"
        )
    return found


def _read(path: Path) -> ShardContent:
    content = read_bin(path) if path.suffix == ".bin" else read_safetensors(path)
    if not content.tensors:
        raise UsageError(f"shard {path} holds no tensor", hint="copy or save it again")
    return content


def _refuse_mismatch(shards: ShardSet, tp: int, stage: int) -> None:
    """Refuse a shard that differs in names, types, shapes or nesting from the first one of its stage."""
    first, other = shards.contents[0, stage], shards.contents[tp, stage]
    names = [shard_name(rank, stage, shards.extension) for rank in (0, tp)]
    for name in [*first.tensors, *other.tensors]:
        if name.endswith(EXTRA_STATE):
            continue
        if name not in first.tensors or name not in other.tensors:
            there, absent = names if name in first.tensors else names[::-1]
            raise UsageError(f"the shards of a stage must hold the same names, but {name!r} is in {there} and not in "
                             f"{absent}: save them together")  # fmt: skip
        a, b = first.tensors[name], other.tensors[name]
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            kinds = f"{describe(a.dtype, a.shape)} in {names[0]} and {describe(b.dtype, b.shape)} in {names[1]}"
            raise UsageError(f"the shards of a stage must agree, but {name!r} is {kinds}", hint="save them together")
    if other.wrapper != shards.contents[0, 0].wrapper:
        raise UsageError(
            f"the shards of {shards.folder} must be nested alike, but {names[1]} is not", hint="save them again"
        )
