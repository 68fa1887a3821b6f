"""Reads a state_dict that torch.save wrote: the weights, and the entries next to them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from zenith_checkpoint.reading.torch_file import Described, TorchFile, read_torch_file
from zenith_checkpoint.tensors import ShardContent, StoredTensor
from zenith_tune.errors import UsageError

WRAPPERS = ("model", "module", "state_dict")
ARGS = "args"


def read_state_dict(path: Path, name: str | None = None) -> list[ShardContent]:
    """Return the weights of a file and where they lie in it: one content, or one for each virtual pipeline stage."""
    file = read_torch_file(path)
    loaded = file.content
    if not isinstance(loaded, dict):
        kind = loaded.kind if isinstance(loaded, Described) else type(loaded).__name__
        raise UsageError(f"shard {path} must hold a state_dict, but holds a {kind}", hint="save a state_dict")
    wrappers: list[str | None] = [
        f"model{number}" for number in range(len(loaded)) if isinstance(loaded.get(f"model{number}"), dict)
    ]
    wrappers = wrappers or [next((key for key in WRAPPERS if isinstance(loaded.get(key), dict)), None)]
    try:
        return [_content(file, name or path.name, each, wrappers) for each in wrappers]
    except RecursionError:
        raise UsageError(
            f"shard {path} is damaged: its state_dict holds a dictionary twice", hint="save it again"
        ) from None


def _content(file: TorchFile, name: str, wrapper: str | None, wrappers: list[str | None]) -> ShardContent:
    """Return what lies under one key, or all where there is none."""
    loaded: dict[Any, Any] = file.content
    weights = loaded if wrapper is None else loaded[wrapper]
    beside = {} if wrapper is None else {key: value for key, value in loaded.items() if key not in wrappers}
    leaves = list(_leaves(weights, set()))
    flat = {keys[0]: value for keys, value in leaves if len(keys) == 1}
    plain = {str(key): value for key, value in (flat if wrapper is None else beside).items() if _is_plain(value)}
    _refuse_old_order(plain, file.path)
    others = [".".join(keys) for keys, value in leaves if not isinstance(value, torch.Tensor)]
    args = loaded.get(ARGS)
    state = vars(args) if isinstance(args, argparse.Namespace) else {}
    return ShardContent(
        name=name,
        tensors=_tensors(file, leaves),
        wrapper=None if wrapper is None else WRAPPERS[0] if len(wrappers) > 1 else wrapper,
        plain=plain,
        args={key: value for key, value in state.items() if _is_plain(value) and isinstance(key, str)},
        left_out=tuple(each for each in [*map(str, beside), *others] if each not in plain),
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _leaves(node: dict[Any, Any], seen: set[int], keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if id(node) in seen:  # dictionaries that hold one another twice have more leaves than anybody could count
        raise RecursionError
    seen.add(id(node))
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, seen, (*keys, str(key)))
        else:
            yield (*keys, str(key)), value


def _refuse_old_order(plain: dict[str, Any], path: Path) -> None:
    version = plain.get("checkpoint_version")
    if isinstance(version, int | float) and version < 2:
        problem = f"shard {path} has checkpoint_version {version}, whose order of queries, keys and values is another"
        raise UsageError(problem, hint="load and save it with a Megatron-LM that writes version 3")


def _tensors(file: TorchFile, leaves: list[tuple[tuple[str, ...], Any]]) -> dict[str, StoredTensor]:
    tensors: dict[str, StoredTensor] = {}
    for keys, value in leaves:
        name = ".".join(keys)
        if not isinstance(value, torch.Tensor):
            continue
        if name in tensors:
            raise UsageError(f"shard {file.path} names {name!r} twice", hint="save a plain state_dict")
        tensors[name] = file.tensor(name, tuple(key.count(".") + 1 for key in keys), value)
    return tensors
