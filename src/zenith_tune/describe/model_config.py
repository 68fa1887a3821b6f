"""What a model's config.json says of its shape, wherever the framework that wrote it has put it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.describe.hub import fetch_config
from zenith_tune.errors import ModelConfigError
from zenith_tune.regular_file import open_regular

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
QUERY_GROUPS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
LANGUAGE_PARTS = ("text_config", "thinker_config", "llm_config", "language_config", "language_model", "lm_config")
VISION_PARTS = frozenset(
    {
        "img_processor",
        "mm_vision_tower",
        "thinker_config",
        "vision_config",
        "vision_encoder",
        "vision_model",
        "vision_tower",
        "visual",
        "visual_config",
        "vit_config",
    }
)
OTHER_PARTS = ("vision", "visual", "vit", "image", "img", "video", "audio", "speech", "talker", "wav", "encoder")
"""A nested config whose name holds one of these is not the language model."""
SUB_PARTS = ("attn_config", "ffn_config")
OTHERWISE = "or leave model out and give num_layers= and num_query_groups="
CURE = f"mend it, {OTHERWISE}"
MAX_MIB = 16
"""The longest configs there are hold some hundred kilobytes; weights that are given by mistake hold gigabytes."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Hold the shape of a model's language part."""

    num_layers: int
    num_query_groups: int
    num_attention_heads: int | None
    num_experts: int | None
    """None for a model that is not a mixture of experts."""
    is_vision_language: bool
    source: str
    """The file, or the Hugging Face id, that this was read from."""


def read_model_config(model: str) -> ModelConfig:
    """Read the config of `model`: a folder that holds config.json, a path to one, or a Hugging Face id."""
    path = _local_path(model)
    if path is not None:
        path = path / "config.json" if path.is_dir() else path
        return _read(path, source=str(path))
    if model.startswith((".", "/", "~")) or model.endswith(".json"):
        raise ModelConfigError(f"model {model!r} looks like a path, but nothing is there: check the path, {OTHERWISE}")
    return _read(fetch_config(model), source=model)


def _local_path(model: str) -> Path | None:
    """Return where `model` is on this machine, or None where it is not."""
    if not model.strip():
        raise ModelConfigError(f"model must be a local path or a Hugging Face id, but is empty: give one, {OTHERWISE}")
    try:
        path = Path(model).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError) as error:
        raise ModelConfigError(f"model {model!r} cannot be looked up ({error}): check the path, {OTHERWISE}") from None


def _read(path: Path, source: str) -> ModelConfig:
    try:
        return _describe(_load(path, source), source)
    except RecursionError:
        raise _not_json(source, "nested too deep") from None


def _describe(config: Json, source: str) -> ModelConfig:
    part = _language_part(config)
    if part is None:
        raise _missing(source, LAYERS)
    num_heads = _count(part, HEADS, source)
    return ModelConfig(
        num_layers=_required(_count(part, LAYERS, source), LAYERS, source),
        num_query_groups=_required(_query_groups(part, source) or num_heads, (*QUERY_GROUPS[:1], *HEADS[:1]), source),
        num_attention_heads=num_heads,
        num_experts=_num_experts(part, source),
        is_vision_language=any(part in VISION_PARTS and value is not None for part, value in _walk(config)),
        source=source,
    )


def _load(path: Path, source: str) -> Json:
    try:
        config = json.loads(_content(path).decode("utf-8-sig"))
    except FileNotFoundError:
        raise ModelConfigError(f"model folder {str(path.parent)!r} has no config.json: add it, {OTHERWISE}") from None
    except OSError as error:
        raise ModelConfigError(f"{source} cannot be read ({error.strerror}): {CURE}") from None
    except ValueError as error:
        raise _not_json(source, " ".join(str(error).split())) from None
    if not isinstance(config, dict):
        raise ModelConfigError(f"{source} must be a JSON object, but is a {type(config).__name__}: {CURE}")
    return config


def _content(path: Path) -> bytes:
    # The hub's cache is made of links, so these are followed; a pipe or a device would never end.
    with open_regular(Path(os.path.realpath(path))) as file:
        data = file.read(MAX_MIB * 2**20 + 1)
    if len(data) > MAX_MIB * 2**20:
        raise OSError(errno.EFBIG, f"larger than {MAX_MIB} MiB")
    return data


def _language_part(config: Json) -> Json | None:
    """Return the nested config that describes the language model, or `config` itself where that one does."""
    nested = {name: value for name, value in config.items() if isinstance(value, dict)}
    for name in LANGUAGE_PARTS:
        if name in nested and (part := _language_part(nested[name])) is not None:
            return part
    if any(config.get(key) is not None for key in LAYERS):
        return config
    others = [value for name, value in nested.items() if not any(word in name.lower() for word in OTHER_PARTS)]
    parts = [part for value in others if (part := _language_part(value)) is not None]
    # Two candidates and no telling name: a guess could be the wrong one.
    return parts[0] if len(parts) == 1 else None


def _count(part: Json, keys: tuple[str, ...], source: str) -> int | None:
    """Return the first of `keys` that the config has, or None; a value that is no count is an error."""
    for scope in (part, *(part[name] for name in SUB_PARTS if isinstance(part.get(name), dict))):
        for key in keys:
            value = scope.get(key)
            if value is None:
                continue
            if type(value) is not int or value < 1:
                raise ModelConfigError(f"{source}: {key} must be a whole number from 1, but got {value!r}: {CURE}")
            return value
    return None


def _query_groups(part: Json, source: str) -> int | None:
    groups = _count(part, QUERY_GROUPS, source)
    # Falcon and StarCoder say in words that all heads share one key and value head.
    return 1 if groups is None and part.get("multi_query") is True else groups


def _num_experts(part: Json, source: str) -> int | None:
    # A dense model of a family that also has mixtures writes 0 here.
    dense = {key: None for key in EXPERTS if type(part.get(key)) is int and part[key] == 0}
    num_experts = _count({**part, **dense}, EXPERTS, source)
    return None if num_experts == 1 else num_experts


def _required(value: int | None, keys: tuple[str, ...], source: str) -> int:
    if value is None:
        raise _missing(source, keys)
    return value


def _not_json(source: str, reason: str) -> ModelConfigError:
    return ModelConfigError(f"{source} must be a config.json in JSON, but is not ({reason}): {CURE}")


def _missing(source: str, keys: tuple[str, ...]) -> ModelConfigError:
    return ModelConfigError(f"{source} must have {' or '.join(keys)} for its language model, but has not: {CURE}")


def _walk(value: object) -> Iterator[tuple[str, object]]:
    """Yield every key and value at any depth."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield key, child
            yield from _walk(child)
