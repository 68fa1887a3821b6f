"""Reads what a .safetensors shard holds: its header only, checked against the file's size."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from zenith_checkpoint.tensor_view import ITEM_BYTES, JoinedTensor, ShardContent, StoredTensor
from zenith_tune.errors import UsageError
from zenith_tune.study.files import open_regular

MAX_HEADER_BYTES = 100_000_000
"""The limit of the format's own readers."""
LENGTH_BYTES = 8
METADATA = "__metadata__"

Refuse = Callable[[str], UsageError]


def read_safetensors(path: Path) -> ShardContent:
    """Return the tensors of a shard and where they lie; nothing but the header is read."""

    def refuse(problem: str) -> UsageError:
        return UsageError(f"shard {path} {problem}", hint="copy or save it again")

    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            if size < LENGTH_BYTES or length > size - LENGTH_BYTES:
                raise refuse(f"is truncated: it has {size:,} bytes, fewer than its header tells")
            if length > MAX_HEADER_BYTES:
                raise refuse(f"is no safetensors file: its header would have {length:,} bytes")
            text = file.read(length)
    except OSError as error:
        raise refuse(f"cannot be read ({error.strerror or error})") from None
    header = _parsed(text, refuse)
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise refuse(f"has a header whose {METADATA} is no map of words")
    start = LENGTH_BYTES + length
    tensors = {name: _tensor(name, entry, path, start, refuse) for name, entry in header.items()}
    _refuse_gaps(tensors, start, size, refuse)
    return ShardContent(name=path.name, tensors=tensors, metadata=metadata)


def _parsed(text: bytes, refuse: Refuse) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise refuse("names a tensor twice in its header")
        return found

    try:
        header = json.loads(text, object_pairs_hook=unique)
    except UsageError:
        raise
    except (ValueError, RecursionError):
        raise refuse("is no safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise refuse("is no safetensors file: its header is no JSON object")
    return header


def _tensor(name: str, entry: Any, path: Path, start: int, refuse: Refuse) -> StoredTensor:
    fields: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = (fields.get(key, "") for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and _are_counts(shape) and _are_counts(offsets) and len(offsets) == 2):
        raise refuse(f"has a header that does not tell the type, shape and place of {name!r}")
    if dtype not in ITEM_BYTES:
        raise refuse(f"holds {name!r} as {dtype!r}, which is none of {', '.join(ITEM_BYTES)}")
    if offsets[1] - offsets[0] != math.prod(shape) * ITEM_BYTES[dtype]:
        raise refuse(f"has {offsets[1] - offsets[0]:,} bytes for {name!r}, which is {dtype} {shape}")
    key_parts = (name.count(".") + 1,)
    shape, offset = tuple(shape), start + offsets[0]
    return StoredTensor(name=name, key_parts=key_parts, dtype=dtype, shape=shape, path=path, offset=offset)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < 2**63 for each in value)


def _refuse_gaps(tensors: dict[str, StoredTensor], start: int, size: int, refuse: Refuse) -> None:
    """Refuse tensors that overlap or leave room between them, and a file that ends too early or too late."""
    end = start
    for tensor in sorted(tensors.values(), key=lambda each: (each.offset, each.num_bytes)):
        if tensor.offset != end:
            raise refuse(f"has a header by which {tensor.name!r} does not follow the tensor before it")
        end += tensor.num_bytes
    if end > size:
        raise refuse(f"is truncated: it has {size:,} bytes of {end:,}")
    if end < size:
        raise refuse(f"has {size - end:,} bytes behind its last tensor")


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
