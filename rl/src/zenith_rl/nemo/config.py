"""A configuration of NeMo RL: its file, those that it inherits, and the overrides of the command.

As its utils/config.py composes them: `defaults` names files relative to the one that has it, later ones win, and a
section with `_override_` takes the place of the inherited one. Values such as `${mul:${a.b}, 2}` refer to others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.presets.shared.training_files import flat, read_yaml
from zenith_tune.shell.parsed_command import script_text

MOST_INHERITED = 20
"""Files that inherit one another; more are a circle."""
OVERRIDE = "_override_"
UNKNOWN = object()
"""What a reference gives that cannot be followed."""
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")
_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "max": max,
}


def composed(path: Path, *, depth: int = 0) -> dict[str, Any]:
    """Return what a file says with all that it inherits, references as they are written."""
    text = script_text(str(path))
    try:
        own = read_yaml(text)
    except ValueError as error:
        raise UsageError(f"{path} is no YAML ({error})", hint="correct it") from None
    if not isinstance(own, dict) or depth > MOST_INHERITED:
        why = "cannot be read" if not text else "inherits itself" if depth > MOST_INHERITED else "holds no keys"
        raise UsageError(f"the configuration {path} {why}", hint="start from the folder of NeMo RL, or give its path")
    named = own.pop("defaults", [])
    found: dict[str, Any] = {}
    for each in [named] if isinstance(named, str) else named:
        found = _inherited(found, composed(path.parent / str(each), depth=depth + 1))
    return _inherited(found, own)


def _inherited(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    # Of sections alone: further below the mark is a key like others.
    whole = {key for key, value in own.items() if isinstance(value, Mapping) and value.get(OVERRIDE)}
    plain = {key: {name: each for name, each in own[key].items() if name != OVERRIDE} for key in whole}
    return _merged({key: value for key, value in base.items() if key not in whole}, {**own, **plain})


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in over.items():
        below = found.get(key)
        found[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return found


def resolved(tables: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by path with overrides; a reference that cannot be followed stays as it is written."""
    values = flat(tables)
    for key, value in overrides.items():
        values |= flat(value, f"{key}.") if isinstance(value, Mapping) else {key: value}
    return {key: _resolved(value, key, values) for key, value in values.items()}


def _resolved(value: Any, key: str, values: Mapping[str, Any], depth: int = 0) -> Any:
    while isinstance(value, str) and (match := _REFERENCE.search(value)) and depth < MOST_INHERITED:
        depth += 1
        if (found := _referred(match[1].strip(), key, values, depth)) is UNKNOWN:
            return value
        value = found if match[0] == value.strip() else value.replace(match[0], str(found))
    return value


def _referred(text: str, key: str, values: Mapping[str, Any], depth: int) -> Any:
    name, is_function, arguments = text.partition(":")
    if is_function:
        numbers = [read_yaml(each) for each in arguments.split(",")]
        is_known = name in _FUNCTIONS and len(numbers) == 2 and all(type(each) in (int, float) for each in numbers)
        if not is_known or (name == "div" and not numbers[1]):
            return UNKNOWN
        found = _FUNCTIONS[name](*numbers)
        return found if math.isfinite(found) else UNKNOWN
    if text.startswith("."):  # as many levels up as there are dots
        up = len(text) - len(text.lstrip("."))
        text = ".".join([*key.split(".")[:-up], text.lstrip(".")])
    return _resolved(values[text], text, values, depth) if text in values else UNKNOWN
