"""Writes plain nested settings as YAML; no more of YAML than that."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

Scalar = int | float | str | bool
Settings = Mapping[str, "Scalar | Settings"]

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}


def yaml_text(settings: Settings, indent: int = 0) -> str:
    """Write settings, one per line.

    >>> print(yaml_text({"use_cpu": False, "part": {"size": 2, "kind": "no"}}), end="")
    use_cpu: false
    part:
      size: 2
      kind: "no"
    """
    lines = []
    for key, value in settings.items():
        if isinstance(value, Mapping):
            lines.append(f"{' ' * indent}{key}:\n{yaml_text(value, indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{key}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value: Scalar) -> str:
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or value.lower() in _WORDS):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
