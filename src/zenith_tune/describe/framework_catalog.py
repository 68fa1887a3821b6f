"""Frameworks by name, from the catalog."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import replace
from importlib import resources
from typing import Any

from zenith_tune.describe.framework_spec import FrameworkSpec
from zenith_tune.errors import UnknownNameError

Entry = dict[str, Any]

_ABOUT = ("aliases", "like")


def load_framework(name: str) -> FrameworkSpec:
    """Return the framework of this name, or the one that it is another name for.

    >>> load_framework("ms-swift").name
    'megatron'
    """
    known = _entries()
    key = name.strip().lower()
    found = key if key in known else _aliases().get(key)
    if found is None:
        raise UnknownNameError("framework", name, [*known, *_aliases()])
    return _framework(found)


def known_frameworks() -> list[str]:
    """Return the names in the catalog, without aliases."""
    return list(_entries())


@functools.cache
def _framework(name: str) -> FrameworkSpec:
    entry = _entries()[name]
    base = _framework(entry["like"]) if "like" in entry else FrameworkSpec(name=name)
    values = {key: value for key, value in entry.items() if key not in _ABOUT}
    tables = {key: replace(getattr(base, key), **value) for key, value in values.items() if isinstance(value, dict)}
    return replace(base, name=name, **values | tables)


@functools.cache
def _entries() -> dict[str, Entry]:
    text = resources.files("zenith_tune.describe").joinpath("catalog/frameworks.toml").read_text(encoding="utf-8")
    entries: dict[str, Entry] = tomllib.loads(text)["frameworks"]
    return entries


@functools.cache
def _aliases() -> dict[str, str]:
    return {alias: name for name, entry in _entries().items() for alias in entry.get("aliases", ())}
