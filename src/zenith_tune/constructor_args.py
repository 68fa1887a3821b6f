"""Reads `k=v,k=v` into a constructor's keyword arguments, with the types of its signature."""

from __future__ import annotations

import difflib
import inspect
import re
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from zenith_tune.errors import UsageError

T = TypeVar("T")

_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off"}


def parse_pairs(text: str, option: str, example: str = "n_gpus=8,gbs=16") -> dict[str, str]:
    """Split `k=v,k=v`; a comma inside a value is written `\\,`.

    >>> parse_pairs("n_gpus=8,gbs=16", "--args")
    {'n_gpus': '8', 'gbs': '16'}
    """
    pairs: dict[str, str] = {}
    for part in re.split(r"(?<!\\),", text):
        key, equals, value = part.strip().replace("\\,", ",").partition("=")
        if not equals or not key or not value:
            raise UsageError(f"{option} takes k=v,k=v, but got {part.strip()!r}: write e.g. {option} {example}")
        if key in pairs:
            raise UsageError(f"{option} gives {key!r} twice ({pairs[key]!r} and {value!r}): give it once")
        pairs[key] = value
    return pairs


def construct(cls: type[T], args: Mapping[str, Any], what: str, *, defaults: Mapping[str, Any] | None = None) -> T:
    """Build `cls` from loosely typed arguments; an unknown or badly typed one lists the valid keys.

    `defaults` stand in for arguments that are not given, where the constructor knows them.
    """
    known = typed(cls, args, what, defaults=defaults)
    try:
        return cls(**known)
    except UsageError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what} does not take {known}: {error}") from error


def typed(
    cls: type[Any], args: Mapping[str, Any], what: str, *, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return arguments with the types of the constructor's signature."""
    parameters = _keyword_parameters(cls)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())
    known = {name: value for name, value in {**(defaults or {}), **args}.items() if name in parameters}
    unknown = [name for name in args if name not in parameters]
    if unknown and not takes_any:
        close = difflib.get_close_matches(unknown[0], parameters, n=1)
        guess = f" did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"{what} takes no argument {unknown[0]!r};{guess} {_valid(parameters)}")
    missing = [name for name, (_, default) in parameters.items() if default is inspect.Parameter.empty]
    missing = [name for name in missing if name not in known]
    if missing:
        raise UsageError(f"{what} needs {' and '.join(missing)}. {_valid(parameters)}")
    return {name: _convert(value, parameters[name][0], name, what, parameters) for name, value in known.items()}


def _keyword_parameters(cls: type[Any]) -> dict[str, tuple[Any, Any]]:
    """Return each keyword of the constructor with its type and default."""
    hints = typing.get_type_hints(cls.__init__)
    parameters = inspect.signature(cls).parameters.values()
    named = [p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return {p.name: (hints.get(p.name, str), p.default) for p in named}


def _convert(value: Any, hint: Any, name: str, what: str, parameters: dict[str, tuple[Any, Any]]) -> Any:
    if not isinstance(value, str):
        return value
    for kind in _scalar_types(hint):
        try:
            return _parse_bool(value) if kind is bool else kind(value)
        except ValueError:
            continue
    expected = " or ".join(kind.__name__ for kind in _scalar_types(hint))
    raise UsageError(f"{what}: {name} must be {expected}, but got {value!r}. {_valid(parameters)}")


def _scalar_types(hint: Any) -> list[type]:
    """Return the plain types in a hint, the most particular first: `int | None` gives [int]."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return [kind for kind in (bool, int, float, str) if kind in members] or [str]


def _parse_bool(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError(text)


def _valid(parameters: dict[str, tuple[Any, Any]]) -> str:
    if not parameters:
        return "It takes none."
    shown = []
    for name, (hint, default) in parameters.items():
        kind = "|".join(kind.__name__ for kind in _scalar_types(hint))
        required = default is inspect.Parameter.empty
        shown.append(f"{name}: {kind}" + (" (required)" if required else ""))
    return f"Valid: {', '.join(shown)}."
