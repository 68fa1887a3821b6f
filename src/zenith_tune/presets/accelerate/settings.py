"""An Accelerate configuration: a file that is read strictly and never changed, and copies with other values."""

from __future__ import annotations

import copy
import difflib
import json
import os
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.presets.accelerate.yaml_file import Yaml, YamlError, read_yaml
from zenith_tune.presets.accelerate_keys import OLD, SECTION_OF, SECTIONS, TOP, checked, full_key
from zenith_tune.presets.yaml_text import yaml_text
from zenith_tune.regular_file import open_regular

MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class AccelerateSettings:
    """Hold what a configuration says: keys at the top, and sections by their full names.

    >>> own = AccelerateSettings(values={"num_processes": 8, "deepspeed_config": {"zero_stage": 2}})
    >>> own.get("zero_stage"), own.having({"zero_stage": 3}).get("zero_stage"), own.whole("num_processes")
    (2, 3, 8)
    """

    values: Yaml = field(default_factory=dict)
    source: str = "the Accelerate configuration"
    unread: tuple[str, ...] = ()
    """Keys inside sections that Accelerate ignores in silence."""

    def get(self, key: str) -> Any:
        """Return the value of a key, wherever it belongs, or None."""
        section = SECTION_OF.get(key)
        return (self.values if section is None else self.values.get(section, {})).get(key)

    def whole(self, key: str) -> int | None:
        """Return a whole number from 1, or None where there is none; anything else is an error."""
        value = self.get(key)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if value is None or value == "auto" or (key == "num_processes" and value == -1):
            return None
        if type(value) is not int or not 1 <= value <= 2**31:
            raise UsageError(f"{self.source}: {key} must be a whole number from 1, but got {value!r}: correct it")
        return value

    def flag(self, key: str) -> bool:
        """Return whether something is switched on; false where nothing is said."""
        return is_on(self.get(key))

    def word(self, key: str) -> str | None:
        """Return a value as text in lower case, or None."""
        value = self.get(key)
        return None if value is None else str(value).lower()

    def having(self, changes: Mapping[str, Any]) -> AccelerateSettings:
        """Return a copy with these values, each under a name that Accelerate reads; None takes a value away."""
        values = copy.deepcopy(self.values)
        for key, value in changes.items():
            section = SECTION_OF.get(key)
            if section is None and key not in TOP:
                raise UnknownNameError("key of an Accelerate configuration", key, [*TOP, *SECTION_OF])
            place = values if section is None else values.setdefault(section, {})
            if value is None:
                place.pop(key, None)
            else:
                place[key if section is None else checked(section, key)] = value
        return AccelerateSettings(values=values, source=self.source, unread=self.unread)

    def without(self, section: str) -> AccelerateSettings:
        """Return a copy without a section."""
        values = {key: value for key, value in self.values.items() if key != section}
        return AccelerateSettings(values=values, source=self.source, unread=self.unread)

    @property
    def text(self) -> str:
        """The configuration as a file."""
        return yaml_text(_plain(self.values))


def is_on(value: object) -> bool:
    """Tell whether a value of YAML or of an option means yes.

    >>> [is_on(value) for value in (True, "true", "False", None, 1)]
    [True, True, False, False, True]
    """
    return str(value).lower() in ("true", "1", "yes", "y", "on", "t")


def read_settings(path: Path) -> AccelerateSettings:
    """Read a configuration, YAML or JSON, or say in one line what is wrong with it."""
    source = str(path)
    try:
        text = _content(path)
        values = json.loads(text) if source.endswith(".json") else read_yaml(text)
    except FileNotFoundError:
        raise UsageError(f"the Accelerate configuration {source} does not exist: correct --config_file") from None
    except OSError as error:
        raise UsageError(f"the Accelerate configuration {source} cannot be read ({error.strerror}): mend it") from None
    except (YamlError, ValueError, RecursionError) as error:
        law = "must be a file as `accelerate config` writes it"
        raise UsageError(f"{source} {law}, but is not ({' '.join(str(error).split())}): correct it") from None
    if not isinstance(values, dict):
        raise UsageError(f"{source} must hold keys and values, but is a {type(values).__name__}: correct it")
    return _checked(values, source)


def _checked(values: Yaml, source: str) -> AccelerateSettings:
    """Refuse what Accelerate refuses, and tell what it would ignore."""
    for key in values:
        if key not in TOP | OLD:
            close = difflib.get_close_matches(key, TOP, n=1)
            cure = f"; did you mean {close[0]!r}?" if close else ": take it out"
            raise UsageError(f"{source}: Accelerate knows no key {reprlib.repr(key)}{cure}")
    if values.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        law = "the preset accelerate starts jobs on machines of your own"
        raise UsageError(f"{source}: {law}, but compute_environment is {values['compute_environment']}: change it")
    named: Yaml = {key: value for key, value in values.items() if key not in OLD}
    unread: list[str] = []
    if is_on(values.get("fp16")) and named.get("mixed_precision") is None:
        named["mixed_precision"] = "fp16"
    if str(values.get("dynamo_backend", "NO")).upper() not in ("NO", "FALSE"):
        named["dynamo_config"] = {"dynamo_backend": values["dynamo_backend"]}
    for section, known in SECTIONS.items():
        content = named.pop(section, None)
        if content is None:
            continue
        if not isinstance(content, dict):
            raise UsageError(f"{source}: {section} must hold keys and values, but got {content!r}: correct it")
        keys = {full_key(section, key): value for key, value in content.items()}
        unread += [key for key in keys if key not in known]
        named[section] = {key: value for key, value in keys.items() if key in known}
    return AccelerateSettings(values=named, source=source, unread=tuple(unread))


def _plain(values: Yaml) -> Yaml:
    """Return what can be written: nothing that is unset, and no section without a key."""
    found: Yaml = {}
    for key, value in values.items():
        if value is None or value in ({}, []):
            continue
        if isinstance(value, list):
            raise UsageError(f"{key} is a list, which only TPUs have a use for, but got {value!r}: take it out")
        # PyYAML reads 1e-05 as a word.
        found[key] = _plain(value) if isinstance(value, dict) else _decimal(value)
    return found


def _decimal(value: Any) -> Any:
    return f"{value:.12f}".rstrip("0") if isinstance(value, float) and "e" in repr(value) else value


def _content(path: Path) -> str:
    with open_regular(Path(os.path.realpath(path))) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise YamlError("larger than 1 MiB")
    return data.decode("utf-8-sig")
