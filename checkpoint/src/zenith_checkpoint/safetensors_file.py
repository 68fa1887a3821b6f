"""Reads and writes .safetensors files: mapped by the format's own library, written a block at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from safetensors import safe_open

from zenith_checkpoint.lazy_tensor import LazyTensor
from zenith_checkpoint.tensors import DTYPE_NAMES, JoinedTensor, ShardContent, StoredTensor
from zenith_tune.errors import UsageError

LENGTH_BYTES = ALIGNMENT = 8


def read_safetensors(path: Path) -> ShardContent:
    """Return the tensors of a shard, mapped and not read."""
    if not path.is_file():
        raise UsageError(f"shard {path} is no regular file", hint="copy or save it again")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: LazyTensor.of(file.get_tensor(name)) for name in file.offset_keys()}
            metadata = file.metadata() or {}
    except Exception as error:  # a damaged or hostile file may fail in any part of the reader
        reason = " ".join(str(error).split())[:120]
        raise UsageError(f"shard {path} is no whole safetensors file ({reason})", hint="copy it again") from None
    stored = {
        name: StoredTensor(name=name, key_parts=(name.count(".") + 1,), path=path, data=data)
        for name, data in tensors.items()
    }
    return ShardContent(name=path.name, tensors=stored, metadata=metadata)


def write_safetensors(path: Path, tensors: Iterable[JoinedTensor], metadata: dict[str, str]) -> None:
    """Write a new file; the library would want all of its tensors in memory, and here it is a block."""
    # Wide elements first, so that each tensor begins at a multiple of its element's size.
    ordered = sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt", **metadata}}
    end = 0
    for tensor in ordered:
        start, end = end, end + tensor.num_bytes
        dtype = DTYPE_NAMES[tensor.dtype]
        header[tensor.name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("xb", buffering=0) as file:
        _write(file.fileno(), len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for tensor in ordered:
            for block in tensor.data.blocks():
                _write(file.fileno(), block.numpy().data)


def _write(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
