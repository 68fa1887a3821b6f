"""Shards as files, written and read by code of the tests' own (.safetensors) and by torch (.bin)."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from tests.checkpoint.reference import UNSIGNED, Array, Model, Weights
from tests.requirements import need_module

TORCH = {"F8_E4M3": "float8_e4m3fn", "BF16": "bfloat16", "F16": "float16", "F32": "float32"}
SIZES = {"F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "U8": 1}


def need_torch() -> Any:
    need_module("checkpoint", "torch")
    import torch

    return torch


def write_safetensors(path: Path, weights: Weights, dtype: str) -> None:
    header, body = {}, b""
    for name, array in weights.items():
        data = np.ascontiguousarray(array).tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + body)


def read_safetensors(path: Path) -> tuple[Weights, set[str]]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    weights = {}
    for name, entry in header.items():
        start, stop = (8 + length + offset for offset in entry["data_offsets"])
        kind = UNSIGNED[SIZES[entry["dtype"]]]
        weights[name] = np.frombuffer(data[start:stop], kind).reshape(entry["shape"])
    return weights, {entry["dtype"] for entry in header.values()}


def to_torch(array: Array, dtype: str) -> Any:
    torch = need_torch()
    data = bytearray(np.ascontiguousarray(array).tobytes())
    return torch.frombuffer(data, dtype=getattr(torch, TORCH[dtype])).reshape(array.shape)


def from_torch(tensor: Any) -> Array:
    torch = need_torch()
    raw: Array = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
    shaped: Array = raw.view(UNSIGNED[tensor.element_size()]).reshape(tuple(tensor.shape))
    return shaped


def write_bin(path: Path, weights: Weights, dtype: str, *, nested: bool = False) -> None:
    torch = need_torch()
    tensors = {name: to_torch(array, dtype) for name, array in weights.items()}
    torch.save(nest(tensors) if nested else tensors, path)


def nest(tensors: dict[str, Any]) -> dict[str, Any]:
    """Nest as Megatron-LM does: dictionaries down to the encoder, whose layers have flat names."""
    model: dict[str, Any] = {}
    for name, value in tensors.items():
        head, found, rest = name.partition("encoder.")
        keys = [*head.rstrip(".").split("."), "encoder", rest] if found else name.split(".")
        node = model
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = value
    return {"model": model, "iteration": 7, "checkpoint_version": 3.0}


def unnest(loaded: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in loaded.items():
        flat |= unnest(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def read_bin(path: Path) -> tuple[Weights, set[str]]:
    torch = need_torch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = torch.load(path, weights_only=True)
    tensors = unnest(loaded.get("model", loaded))
    names = {torch_name: name for name, torch_name in TORCH.items()}
    dtypes = {names[str(tensor.dtype).removeprefix("torch.")] for tensor in tensors.values()}
    return {name: from_torch(tensor) for name, tensor in tensors.items()}, dtypes


def read(path: Path) -> tuple[Weights, set[str]]:
    return read_bin(path) if path.suffix == ".bin" else read_safetensors(path)


def write_shards(
    folder: Path,
    model: Model,
    tp: int,
    pp: int,
    extension: str = "safetensors",
    *,
    global_numbers: bool = False,
    nested: bool = False,
) -> Path:
    folder.mkdir()
    for rank in range(tp):
        for stage in range(pp):
            weights = model.shard(rank, tp, stage, pp, global_numbers=global_numbers)
            path = folder / f"pytorch_model_tp_{rank}_pp_{stage}.{extension}"
            if extension == "bin":
                write_bin(path, weights, model.shape.dtype, nested=nested)
            else:
                write_safetensors(path, weights, model.shape.dtype)
    return folder


def same(found: Weights, expected: Weights) -> bool:
    """Tell whether two sets of weights are the same, bit for bit, names and shapes included."""
    assert sorted(found) == sorted(expected)
    return all(np.array_equal(found[name], expected[name]) for name in expected)
