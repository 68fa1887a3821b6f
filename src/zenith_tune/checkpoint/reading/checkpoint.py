"""What kind of checkpoint a folder holds, and the weights of it, whatever the kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zenith_tune.checkpoint.output_place import PREFIX, Format
from zenith_tune.checkpoint.reading.dist_folder import METADATA, read_dist
from zenith_tune.checkpoint.reading.plain_folder import find_weights, read_weights, states_beside
from zenith_tune.checkpoint.reading.rank_folders import has_rank_folders, iteration_folder, read_rank_folders
from zenith_tune.checkpoint.reading.shard_set import TORCH_DIST, ShardSet, read_shards, shard_set
from zenith_tune.checkpoint.tensor_view import ShardContent
from zenith_tune.errors import UsageError

FSDP = "pytorch_model_fsdp_0"
"""Where Accelerate saves the sharded weights of FSDP."""


def read_checkpoint(folder: Path) -> ShardSet:
    """Return the weights of a folder, by the kind of its files."""
    try:
        names = sorted(path.name for path in folder.iterdir())
        if any(name.startswith(PREFIX) and "_pp_" in name for name in names):
            return read_shards(folder)
        place = iteration_folder(folder)
        if has_rank_folders(place):
            return read_rank_folders(place)
        dist = next((each for each in (place, place / FSDP) if (each / METADATA).is_file()), None)
        if dist is not None:
            return replace(_one(folder, TORCH_DIST, read_dist(dist)), place=dist)
        _refuse_zarr(place)
        weights = find_weights(place)
        if weights is not None:
            return _one(folder, weights.name, read_weights(weights), weights.parent)
    except OSError as error:
        raise UsageError(f"{str(folder)!r} is no folder of shards ({error.strerror})", hint="give the folder") from None
    problem = f"{folder} holds no checkpoint that is known: shards named {PREFIX}T_pp_P.bin or .safetensors, Megatron's"
    raise UsageError(f"{problem} mp_rank folders or torch_dist, or model.safetensors", hint="give its folder")


def _refuse_zarr(place: Path) -> None:
    """Refuse the format that torch_dist replaced, a folder of files for each tensor."""
    if any((path / ".zarray").is_file() for path in place.iterdir()):
        problem = f"{place} is in Megatron's zarr format, which is not supported"
        hint = "load it with a Megatron-LM that reads it (up to 0.15) and save it with --ckpt-format torch_dist"
        raise UsageError(problem, hint=hint)


def _one(folder: Path, source: str, content: ShardContent, *places: Path) -> ShardSet:
    """Return a model that no rank split."""
    states = {name for place in (folder, *places) for name in states_beside(place)}
    content = replace(content, left_out=(*content.left_out, *sorted(states)))
    return shard_set(folder, source, Format.MEGATRON, {(0, 0): content})
