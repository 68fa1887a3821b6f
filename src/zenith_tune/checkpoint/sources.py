"""What kind of checkpoint a folder holds, and the weights of it, whatever the kind."""

from __future__ import annotations

from pathlib import Path

from zenith_tune.checkpoint.output_place import PREFIX
from zenith_tune.checkpoint.shard_set import ShardSet, read_shards
from zenith_tune.errors import UsageError


def read_checkpoint(folder: Path) -> ShardSet:
    """Return the shards of a folder, by the kind of its files."""
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UsageError(f"{str(folder)!r} is no folder of shards ({error.strerror})", hint="give the folder") from None
    if any(name.startswith(PREFIX) for name in names):
        return read_shards(folder)
    raise UsageError(f"{folder} holds no shards, named {PREFIX}T_pp_P.bin or .safetensors", hint="give their folder")
