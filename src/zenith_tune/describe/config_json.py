"""A model's config.json: found, read, and asked for counts under the names that different frameworks use."""

from __future__ import annotations

import json
import reprlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from zenith_tune.errors import ModelConfigError
from zenith_tune.study.files import Json, read_regular
from zenith_tune.units import MIB

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
QUERY_GROUPS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
LANGUAGE_PARTS = ("text_config", "thinker_config", "llm_config", "language_config", "language_model", "lm_config")
OTHER_PARTS = ("vision", "visual", "vit", "image", "img", "video", "audio", "speech", "talker", "wav", "encoder")
"""Parts of names of nested configs that are not the language model."""
SUB_PARTS = ("attn_config", "ffn_config")
FILE_NAME = "config.json"
MAX_BYTES = 16 * MIB
"""Larger than any config, and smaller than weights that are given by mistake."""
MAX_COUNT = 10**9
"""More than any model has of anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigJson:
    """A config.json or one part of it."""

    values: Json
    source: str
    """The file, or the Hugging Face id."""
    otherwise: str
    """What else a user can do, for error messages."""
    missing: list[str] = field(default_factory=list)
    """Keys that were needed and are not there."""

    def refuse(self, problem: str) -> ModelConfigError:
        return ModelConfigError(f"{self.source}{problem}", hint=f"fix it, {self.otherwise}")

    def language_part(self) -> ConfigJson:
        """Return the nested config that describes the language model, or this one where there is none."""
        try:
            part = _language_part(self.values)
        except RecursionError:
            raise self.refuse(" is nested too deep") from None
        return self if part is None else replace(self, values=part)

    def count(self, *keys: str, least: int = 1) -> int | None:
        """Return the first of `keys` that the config has, or None; a value that is no count is an error."""
        parts = (self.values.get(name) for name in SUB_PARTS)
        for scope in (self.values, *(part for part in parts if isinstance(part, dict))):
            for key in keys:
                if (value := scope.get(key)) is None:
                    continue
                if type(value) is not int or not least <= value <= MAX_COUNT:
                    problem = f"{key} must be a whole number from {least} to {MAX_COUNT}"
                    raise self.refuse(f": {problem}, but got {reprlib.repr(value)}")
                return value
        return None

    def need(self, *keys: str, otherwise: int = 0) -> int:
        """Return the first of `keys` that the config has, or `otherwise`; where that is 0, note the key as missing."""
        count = self.count(*keys)
        if count is None and not otherwise:
            self.missing.append(keys[0])
        return count or otherwise

    def size(self, key: str, default: int = 0) -> int:
        """Return a count that may also be 0, or `default` where the config does not have it."""
        value = self.count(key, least=0)
        return default if value is None else value

    def flag(self, key: str) -> bool | None:
        """Return what the config says of `key`, or None; a value that is neither true nor false is an error."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(f": {key} must be true or false, but got {reprlib.repr(value)}")
        return value

    def query_groups(self) -> int | None:
        """Return how many key and value heads there are, or None where every head has its own."""
        multi_query = self.values.get("multi_query") is True
        if multi_query and self.values.get("new_decoder_architecture") is False:
            return 1  # Falcon 7B also writes a number of key and value heads, which its code ignores
        groups = self.count(*QUERY_GROUPS)
        # StarCoder has a flag for all heads sharing one key and value head.
        return 1 if groups is None and multi_query else groups

    def num_experts(self) -> int | None:
        """Return how many experts there are, or None for a model that is not a mixture of experts."""
        # A dense model of a family that also has mixtures writes 0 or 1 here.
        num_experts = self.count(*EXPERTS, least=0) or 0
        return num_experts if num_experts > 1 else None


def find_local(model: str, otherwise: str) -> Path | None:
    """Return where `model` is on this machine, or None where it is not."""
    if not model.strip():
        raise ModelConfigError(
            "model must be a local path or a Hugging Face id, but is empty", hint=f"give one, {otherwise}"
        )
    try:
        path = Path(model).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError) as error:
        problem = f"model {model!r} cannot be looked up ({error})"
        raise ModelConfigError(problem, hint=f"check the path, {otherwise}") from None


def config_path(path: Path) -> Path:
    """Return the config.json in a folder, or the path itself where it is none."""
    return path / FILE_NAME if path.is_dir() else path


def refuse_missing_path(model: str, otherwise: str) -> None:
    """Raise for a path where nothing is, before the hub is asked for it."""
    if model.startswith((".", "/", "~")) or model.endswith(".json"):
        raise ModelConfigError(
            f"model {model!r} looks like a path, but nothing is there", hint=f"check the path, {otherwise}"
        )


def read_config(path: Path, source: str, otherwise: str) -> ConfigJson:
    """Read a config.json."""
    empty = ConfigJson(values={}, source=source, otherwise=otherwise)
    try:
        values = json.loads(read_regular(path, MAX_BYTES).decode("utf-8-sig"))
    except FileNotFoundError:
        problem = f"model folder {str(path.parent)!r} has no config.json"
        raise ModelConfigError(problem, hint=f"add it, {otherwise}") from None
    except OSError as error:
        raise empty.refuse(f" cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:
        raise empty.refuse(f" must be a config.json in JSON, but is not ({' '.join(str(error).split())})") from None
    if not isinstance(values, dict):
        raise empty.refuse(f" must be a JSON object, but is a {type(values).__name__}")
    return replace(empty, values=values)


def _language_part(config: Json) -> Json | None:
    nested = {name: value for name, value in config.items() if isinstance(value, dict)}
    for name in LANGUAGE_PARTS:
        if name in nested and (part := _language_part(nested[name])) is not None:
            return part
    if any(config.get(key) is not None for key in LAYERS):
        return config
    others = [value for name, value in nested.items() if not any(part in name.lower() for part in OTHER_PARTS)]
    parts = [part for value in others if (part := _language_part(value)) is not None]
    # Two candidates and no known name: a guess could be the wrong one.
    return parts[0] if len(parts) == 1 else None
