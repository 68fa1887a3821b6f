"""Writes .safetensors files tensor by tensor: the header first, then the bytes straight from the shards."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from zenith_tune.checkpoint.dtypes import ITEM_BYTES
from zenith_tune.checkpoint.joined_tensor import JoinedTensor
from zenith_tune.checkpoint.safetensors_index import LENGTH_BYTES, METADATA

ALIGNMENT = 8


def write_safetensors(path: Path, tensors: Iterable[JoinedTensor], metadata: dict[str, str]) -> None:
    """Write a new file; no more than a block of it is ever in memory."""
    # Wide elements first, so that each tensor begins at a multiple of its element's size.
    ordered = sorted(tensors, key=lambda tensor: -ITEM_BYTES[tensor.dtype])
    header: dict[str, object] = {METADATA: {"format": "pt", **metadata}}
    end = 0
    for tensor in ordered:
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("xb", buffering=0) as file:
        _write(file.fileno(), len(text).to_bytes(LENGTH_BYTES, "little") + text)
        for tensor in ordered:
            for block in tensor.mosaic.blocks():
                _write(file.fileno(), block.data.cast("B"))


def _write(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
