"""A DeepSpeed configuration: a JSON file that is read strictly and never changed, and copies with other values.

The axes are the keys that are worth searching; choices are around DeepSpeed's own defaults (runtime/zero/config.py of
0.19).
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.study.files import Json, read_regular
from zenith_tune.study.parameters import Value

Keys = tuple[str, ...]
"""Where a value stands, such as ("zero_optimization", "stage")."""

AUTO = "auto"
"""What the Hugging Face Trainer and Accelerate fill in themselves."""
AUTOTUNING = "autotuning"
STAGE: Keys = ("zero_optimization", "stage")
BATCH: Keys = ("train_batch_size",)
MICRO_BATCH: Keys = ("train_micro_batch_size_per_gpu",)
ACCUMULATION: Keys = ("gradient_accumulation_steps",)
SECTIONS = ("zero_optimization", "activation_checkpointing", "bf16", "fp16", "data_types")
"""What DeepSpeed reads as objects, and in which lists are axes."""
_EXAMPLES = {"zero_optimization": '{"stage": 1}', "bf16": '{"enabled": true}', "fp16": '{"enabled": true}'}
MAX_BYTES = 2**20
SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DsConfig:
    """A DeepSpeed configuration."""

    values: Json
    source: str = "the DeepSpeed configuration"

    def get(self, keys: Keys) -> Any:
        """Return the value that stands at `keys`, or None."""
        found: Any = self.values
        for key in keys:
            if not isinstance(found, dict) or key not in found:
                return None
            found = found[key]
        return found

    def is_auto(self, keys: Keys) -> bool:
        """Return whether the value is left to the Trainer."""
        return bool(self.get(keys) == AUTO)

    def count(self, keys: Keys) -> int | None:
        """Return a whole number from 1, or None where there is none, "auto" or a list; anything else is an error."""
        value = self.get(keys)
        if value is None or value == AUTO or isinstance(value, list):
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)  # 5e8 is how people write the sizes of buckets
        if type(value) is not int or value < 1:
            problem = f'{shown_keys(keys)} must be a whole number from 1, a list of them or "auto"'
            raise UsageError(f"{self.source}: {problem}, but got {shown_json(value)}: correct it")
        return value

    def flag(self, keys: Keys, default: bool = False) -> bool:
        value = self.get(keys)
        return value if isinstance(value, bool) else default

    def having(self, settings: Mapping[Keys, Any]) -> DsConfig:
        """Return a copy with these values; None takes a value away."""
        values = copy.deepcopy(self.values)
        for keys, value in settings.items():
            _put(values, keys, value)
        return DsConfig(values=values, source=self.source)

    @property
    def text(self) -> str:
        return json.dumps(self.values, indent=2) + "\n"

    @property
    def digest(self) -> str:
        """A few characters that are others where a value is another; the order of keys and blanks count for nothing."""
        return hashlib.sha256(json.dumps(self.values, sort_keys=True).encode()).hexdigest()[:12]


def shown_json(value: object) -> str:
    """Return a value as a message shows it: as JSON, and not longer than a line has room for."""
    text = json.dumps(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}..."


def shown_keys(keys: Keys) -> str:
    """Return where a value stands as a message shows it."""
    return ".".join(keys)[:SHOWN_CHARS]


def read_ds_config(path: Path) -> DsConfig:
    """Read a configuration, or say in one line with which line of it something is wrong."""
    source = str(path)
    try:
        text = read_regular(path, MAX_BYTES).decode("utf-8-sig")
        values = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise UsageError(f"the DeepSpeed configuration {source} does not exist: correct its path") from None
    except OSError as error:
        raise UsageError(f"the DeepSpeed configuration {source} cannot be read ({error.strerror}): fix it") from None
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(f"{source} must be JSON, but is not ({place}: {error.msg}): correct it") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source} must be JSON, but is not ({' '.join(str(error).split())}): correct it") from None
    if not isinstance(values, dict):
        raise UsageError(f"{source} must be a JSON object, but is a {type(values).__name__}: correct it")
    for section in SECTIONS:
        if not isinstance(values.get(section), dict | None):
            problem = f"{section} must be a JSON object, such as {_EXAMPLES.get(section, '{}')}"
            raise UsageError(f"{source}: {problem}, but got {shown_json(values[section])}: correct it")
    return DsConfig(values=values, source=source)


def _put(values: Json, keys: Keys, value: Any) -> None:
    *sections, last = keys
    for section in sections:
        inner = values.get(section)
        if not isinstance(inner, dict):
            if value is None:
                return
            inner = values[section] = {}
        values = inner
    if value is None:
        values.pop(last, None)
    else:
        values[last] = value


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    """Refuse a key that is there twice, as DeepSpeed does: one of the two would be lost in silence."""
    found: Json = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"key {shown_json(name)} is there twice")
        found[name] = value
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number in JSON")


OFF, CPU = "none", "cpu"
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroAxis:
    """A key that may be searched."""

    keys: Keys
    choices: tuple[Value, ...]
    first_stage: int = 0
    """The lowest stage at which it has an effect."""
    last_stage: int = 3

    def matters(self, stage: int) -> bool:
        return self.first_stage <= stage <= self.last_stage


_BUCKETS = (500_000_000, 50_000_000, 200_000_000)
_ZERO_KEYS: tuple[tuple[str, tuple[Value, ...], int, int], ...] = (
    ("reduce_bucket_size", _BUCKETS, 1, 3),
    ("allgather_bucket_size", _BUCKETS, 1, 2),
    ("overlap_comm", (True, False), 2, 3),
    ("reduce_scatter", (True, False), 2, 3),
    ("contiguous_gradients", (True, False), 2, 3),
    ("allgather_partitions", (True, False), 1, 2),
    ("stage3_prefetch_bucket_size", (50_000_000, 5_000_000, 500_000_000), 3, 3),
    ("stage3_param_persistence_threshold", (100_000, 10_000, 1_000_000), 3, 3),
    ("stage3_max_live_parameters", (1_000_000_000, 100_000_000), 3, 3),
    ("offload_optimizer", (OFF, CPU), 1, 3),
    ("offload_param", (OFF, CPU), 3, 3),
)
"""Names, choices, and the first and the last stage at which each has an effect."""
AXES = {
    name: ZeroAxis(keys=("zero_optimization", name), choices=choices, first_stage=first, last_stage=last)
    for name, choices, first, last in _ZERO_KEYS
}
"""By the name that a point has for it."""
CHECKPOINTING = "checkpointing"
"""Recomputing activations; it is the model's own switch, which the Trainer has an argument for and the JSON has not."""
MEMORY_MODES = (CHECKPOINTING, "offload_optimizer", "offload_param")
"""What trades time for memory, the cheapest first: each has an edge of the micro-batch of its own."""
TUNING = tuple(name for name in AXES if name not in MEMORY_MODES)


def matters(name: str, stage: int) -> bool:
    """Return whether a searched name has an effect at a stage; an unknown name may."""
    axis = AXES.get(name)
    return axis is None or axis.matters(stage)
