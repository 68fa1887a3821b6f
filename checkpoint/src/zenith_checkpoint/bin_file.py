"""Writes files and folders by torch, with tensors mapped from a file and so never all in memory."""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from zenith_checkpoint.output_place import beside
from zenith_checkpoint.tensors import JoinedTensor

ALIGNMENT = 64


def write_bin(path: Path, tensors: Iterable[JoinedTensor], wrapper: str | None, beside: Any) -> None:
    """Write a new file that holds the tensors nested as they were found, or flat where they were not nested.

    The other entries, which may stand alone, may hold tensors anywhere in it.
    """
    listed = list(tensors)
    with mapped(path, [*listed, *leaves(beside)]) as found:
        weights: dict[str, Any] = {}
        for tensor, value in found[: len(listed)]:
            _put(weights, tensor, value)
        whole = _filled(beside, {id(tensor): value for tensor, value in found[len(listed) :]})
        if listed:
            whole = {**whole, wrapper: weights} if wrapper else {**weights, **whole}
        try:
            with path.open("xb") as target:
                torch.save(whole, target)
        except RuntimeError as error:
            raise _cause(error) from None


def write_dist(folder: Path, tensors: Iterable[JoinedTensor], plain: dict[str, Any]) -> None:
    """Write a new folder as Megatron's torch_dist."""
    from torch.distributed import checkpoint  # not at the top: it takes a second that other formats need not wait

    folder.mkdir(parents=True)
    with mapped(folder / "weights", tensors) as found, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is one process which saves
        writer = checkpoint.FileSystemWriter(str(folder), sync_files=False)
        try:
            checkpoint.save({each.name: value for each, value in found}, storage_writer=writer, no_dist=True)
        except checkpoint.CheckpointException as error:
            cause, _ = next(iter(error.failures.values()))
            raise cause from None  # a full disk, or an interrupt
    torch.save(plain, folder / "common.pt")
    versions = {"sharded_backend_version": 1, "common_backend": "torch", "common_backend_version": 1}
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", **versions}))


def leaves(tree: Any) -> Iterator[JoinedTensor]:
    """Yield the tensors in nested dictionaries and lists."""
    if isinstance(tree, JoinedTensor):
        yield tree
    elif isinstance(tree, dict | list):
        for each in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(each)


def _filled(tree: Any, values: dict[int, Any]) -> Any:
    """Return nested dictionaries and lists with torch's tensors in the places of ours."""
    if isinstance(tree, JoinedTensor):
        return values[id(tree)]
    if isinstance(tree, dict):
        return {key: _filled(each, values) for key, each in tree.items()}
    return [_filled(each, values) for each in tree] if isinstance(tree, list) else tree


@contextlib.contextmanager
def mapped(path: Path, tensors: Iterable[JoinedTensor]) -> Iterator[list[tuple[JoinedTensor, Any]]]:
    """Yield each tensor as one of torch's, whose bytes lie in a file next to a path while the block runs."""
    with beside(path) as raw:
        listed = list(tensors)
        offsets = _write_raw(raw, listed)
        with raw.open("r+b") as file:
            # Shared, so that the kernel may take the pages back at any time.
            view = mmap.mmap(file.fileno(), 0)
        yield [(each, _mapped(view, each, offset)) for each, offset in zip(listed, offsets, strict=True)]


def _cause(error: RuntimeError) -> BaseException:
    """Return what struck while torch wrote, which raises an error of its own as it closes a half-written file."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KeyboardInterrupt | OSError):
        cause = cause.__context__
    return cause or OSError(errno.EIO, " ".join(str(error).split())[:120])


def _write_raw(path: Path, tensors: list[JoinedTensor]) -> list[int]:
    offsets = []
    with path.open("xb") as file:
        for tensor in tensors:
            file.write(bytes(-file.tell() % ALIGNMENT))
            offsets.append(file.tell())
            for block in tensor.data.blocks():
                file.write(block.numpy().data)
        file.write(bytes(ALIGNMENT))  # an empty file cannot be mapped
    return offsets


def _mapped(view: mmap.mmap, tensor: JoinedTensor, offset: int) -> torch.Tensor:
    if not tensor.num_bytes:
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    count = tensor.num_bytes // tensor.dtype.itemsize
    return torch.frombuffer(view, dtype=tensor.dtype, count=count, offset=offset).reshape(tensor.shape)


def _put(weights: dict[str, Any], tensor: JoinedTensor, value: Any) -> None:
    """Put a tensor where its keys lead."""
    parts, keys = tensor.name.split("."), []
    for length in tensor.key_parts:
        keys.append(".".join(parts[:length]))
        parts = parts[length:]
    for key in keys[:-1]:
        weights = weights.setdefault(key, {})
    weights[keys[-1]] = value
