"""What kind of checkpoint a folder holds, and its weights, which may lie in plain files with or without an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zenith_checkpoint.output_place import PREFIX, Format
from zenith_checkpoint.reading.rank_folders import has_rank_folders, iteration_folder, read_rank_folders
from zenith_checkpoint.reading.shard_set import DIST_METADATA, TORCH_DIST, ShardSet, read_file, read_shards, shard_set
from zenith_checkpoint.tensors import JoinedTensor, ShardContent, StoredTensor
from zenith_tune.describe.config_json import read_config
from zenith_tune.errors import UsageError
from zenith_tune.study.files import read_regular

CONFIG = "config.json"
WEIGHTS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "pytorch_model/mp_rank_00_model_states.pt",
)
"""By preference; the last is what DeepSpeed writes through Accelerate."""
STATES = ("optimizer", "scheduler", "sampler", "random_states", "scaler", "custom_checkpoint", "zero_pp_rank")
MAX_INDEX_BYTES = 100_000_000
FILE_BYTES = 5_000_000_000
"""What transformers puts into one file at most."""


def find_weights(folder: Path) -> Path | None:
    """Return the file that holds the weights or names those that do."""
    return next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)


def read_weights(path: Path) -> ShardContent:
    """Return the weights of one file, or of all files that an index names."""
    if path.suffix == ".json":
        return _indexed(path)
    (content, *more) = read_file(path)
    if more:
        raise UsageError(f"{path} holds {1 + len(more)} virtual stages", hint="give the folder of all its ranks")
    if not content.tensors or any(0 in tensor.shape for tensor in content.tensors.values()):
        problem = f"{path} holds no weights, or only their names, as with ZeRO-3"
        raise UsageError(problem, hint="join them by DeepSpeed's zero_to_fp32.py first")
    return content


def states_beside(folder: Path) -> tuple[str, ...]:
    """Return the files of a saved state that hold no weights."""
    return tuple(sorted(path.name for path in folder.iterdir() if path.name.startswith(STATES)))


def _indexed(path: Path) -> ShardContent:
    try:
        index: Any = json.loads(read_regular(path, MAX_INDEX_BYTES))
        files: dict[str, str] = dict(index["weight_map"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise UsageError(f"{path} is no index of weights", hint="copy or save it again") from None
    tensors: dict[str, StoredTensor] = {}
    for name in sorted(set(map(str, files.values()))):
        if "/" in name or name in ("", ".", "..") or not (path.parent / name).is_file():
            raise UsageError(f"{path} names {name!r}, which is no file next to it", hint="copy all of its files")
        tensors |= {key: each for key, each in read_weights(path.parent / name).tensors.items() if key in files}
    missing = next((name for name in files if name not in tensors), None)
    if missing is not None:
        raise UsageError(f"{path} names {missing!r}, which {files[missing]!r} does not hold", hint="copy it again")
    return ShardContent(name=path.name, tensors=tensors)


def in_files(tensors: list[JoinedTensor], config: Path) -> tuple[dict[str, list[JoinedTensor]], dict[str, str]]:
    """Return the files that transformers expects in a folder, and the texts next to them: an index, and the config."""
    files: list[list[JoinedTensor]] = [[]]
    for tensor in tensors:
        held = sum(each.num_bytes for each in files[-1])
        if files[-1] and held + tensor.num_bytes > FILE_BYTES:
            files.append([])
        files[-1].append(tensor)
    texts = {CONFIG: _dense(config)} if config.is_file() else {}
    if len(files) == 1:
        return {"model.safetensors": files[0]}, texts
    contents = {f"model-{n:05d}-of-{len(files):05d}.safetensors": each for n, each in enumerate(files, start=1)}
    weight_map = {tensor.name: name for name, each in contents.items() for tensor in each}
    index = {"metadata": {"total_size": sum(each.num_bytes for each in tensors)}, "weight_map": weight_map}
    return contents, {**texts, WEIGHTS[0]: json.dumps(index, indent=2)}


def _dense(config: Path) -> str:
    """Return a config without the quantization that its weights were published in, as they are written without it."""
    values = read_config(config, str(config), "or leave it out").values
    dense = {key: value for key, value in values.items() if key != "quantization_config"}
    return config.read_text() if dense == values else json.dumps(dense, indent=2)


FSDP = "pytorch_model_fsdp_0"
"""Where Accelerate saves the sharded weights of FSDP."""


def read_checkpoint(folder: Path) -> ShardSet:
    """Return the weights of a folder, by the kind of its files."""
    try:
        names = sorted(path.name for path in folder.iterdir())
        if any(name.startswith(PREFIX) and "_pp_" in name for name in names):
            return _with_left_out(read_shards(folder), states_beside(folder))
        place = iteration_folder(folder)
        if has_rank_folders(place):
            return read_rank_folders(place)
        dist = next((each for each in (place, place / FSDP) if (each / DIST_METADATA).is_file()), None)
        if dist is not None:
            from zenith_checkpoint.reading.dist_folder import read_dist  # loads torch.distributed.checkpoint

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
    return _with_left_out(shard_set(folder, source, Format.MEGATRON, {(0, 0): content}), sorted(states))


def _with_left_out(shards: ShardSet, names: Sequence[str]) -> ShardSet:
    """Return the shards with more that is no weight."""
    first = shards.contents[0, 0]
    first = replace(first, left_out=(*first.left_out, *names))
    return replace(shards, contents={**shards.contents, (0, 0): first})
