"""Reads the YAML of an Accelerate configuration: mappings, plain lists and scalars, as Accelerate itself writes them.

PyYAML comes with Accelerate, which may live in another environment than this package; what such a file holds is so
little that a strict reader does. Anything else of YAML is refused by its line, never guessed at.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

Yaml = dict[str, Any]

_KEY = re.compile(r"([A-Za-z_][\w.-]*|\"[^\"\\]+\"|'[^']+')[ ]*:(?:[ ]+(.*))?$", re.ASCII)
_TRUE, _FALSE = {"true", "yes", "on"}, {"false", "no", "off"}
_WHOLE = re.compile(r"[-+]?(?:0|[1-9]\d*)")
_REAL = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+)(?:[eE][-+]\d+)?")
_ODD_NUMBER = re.compile(r"[-+]?0[\dxob_][\w.]*|[-+]?\d+(?::\d+)+|[-+]?\d[\d_]*_[\d_]*")
"""Octal, hexadecimal, base 60 and grouped digits: YAML 1.1 reads numbers that few people mean."""
_SPECIAL = tuple("&*!|>%@`{[")


class YamlError(ValueError):
    """Say which line is beyond this reader, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    number: int
    indent: int
    text: str


def read_yaml(text: str) -> Yaml:
    """Return the mapping that a file holds.

    >>> read_yaml("num_processes: 8  # GPUs\\nfsdp_config:\\n  fsdp_version: 2\\ntpu_env: []\\ndebug: false\\n")
    {'num_processes': 8, 'fsdp_config': {'fsdp_version': 2}, 'tpu_env': [], 'debug': False}
    """
    lines = [line for number, raw in enumerate(text.splitlines(), start=1) if (line := _line(number, raw))]
    if not lines:
        raise YamlError("it is empty")
    found, end = _mapping(lines, 0, lines[0].indent)
    if end < len(lines):
        raise _fault(lines[end], "its indentation fits no line above")
    return found


def scalar(text: str) -> Any:
    """Return what a plain word of YAML 1.1 stands for.

    >>> [scalar(word) for word in ("8", "1.0", "no", "~", "bf16", "1e-05")]
    [8, 1.0, False, None, 'bf16', '1e-05']
    """
    lower = text.lower()
    if lower in _TRUE | _FALSE:
        return lower in _TRUE
    if text in ("", "~") or lower == "null":
        return None
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _REAL.fullmatch(text) else text


def _line(number: int, raw: str) -> _Line | None:
    text = raw.rstrip()
    stripped = text.lstrip(" ")
    if not stripped or stripped.startswith("#") or text in ("---", "..."):
        return None
    if "\t" in text[: len(text) - len(text.lstrip())]:
        raise YamlError(f"line {number}: a tab cannot indent")
    return _Line(number=number, indent=len(text) - len(stripped), text=stripped)


def _mapping(lines: list[_Line], at: int, indent: int) -> tuple[Yaml, int]:
    found: Yaml = {}
    while at < len(lines) and lines[at].indent == indent:
        line = lines[at]
        match = _KEY.match(line.text)
        if match is None:
            raise _fault(line, "it must be `key: value`")
        key = match[1].strip("\"'")
        if key in found:
            raise _fault(line, f"the key {key!r} is there twice")
        value = _without_comment(match[2] or "", line)
        if value:
            found[key], at = _value(value, line), at + 1
        else:
            found[key], at = _block(lines, at + 1, indent)
    return found, at


def _block(lines: list[_Line], at: int, indent: int) -> tuple[Any, int]:
    """Return what stands below a key: a mapping, a list, or nothing at all."""
    if at < len(lines) and lines[at].text.startswith("- ") and lines[at].indent >= indent:
        start, items = lines[at].indent, []
        while at < len(lines) and lines[at].indent == start and lines[at].text.startswith("- "):
            items.append(_value(_without_comment(lines[at].text[2:].strip(), lines[at]), lines[at]))
            at += 1
        return items, at
    if at < len(lines) and lines[at].indent > indent:
        return _mapping(lines, at, lines[at].indent)
    return None, at


def _value(text: str, line: _Line) -> Any:
    if text in ("{}", "[]"):
        return {} if text == "{}" else []
    if text[:1] == '"':
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            raise _fault(line, "its quotes cannot be read") from None
    if text[:1] == "'":
        if len(text) < 2 or text[-1] != "'" or "'" in text[1:-1].replace("''", ""):
            raise _fault(line, "its quotes cannot be read")
        return text[1:-1].replace("''", "'")
    if text.startswith(_SPECIAL) or ": " in text or text.endswith(":") or text.startswith(("- ", "? ")):
        raise _fault(line, "write one plain value for each key")
    if _ODD_NUMBER.fullmatch(text):
        raise _fault(line, f"{text} is a number of another base in YAML: write it in quotes or as a plain number")
    return scalar(text)


def _without_comment(text: str, line: _Line) -> str:
    """Cut off a comment, which begins with a blank and #, outside of quotes."""
    text = text.strip()
    if text[:1] in ("'", '"'):
        end = _closing_quote(text)
        rest = text[end + 1 :].strip()
        if end < 1 or (rest and not rest.startswith("#")):
            raise _fault(line, "its quotes cannot be read")
        return text[: end + 1]
    return "" if text.startswith("#") else text.partition(" #")[0].rstrip()


def _closing_quote(text: str) -> int:
    quote, at = text[0], 1
    while at < len(text):
        if quote == '"' and text[at] == "\\":
            at += 2
            continue
        if text[at] == quote:
            if quote == "'" and text[at + 1 : at + 2] == "'":
                at += 2
                continue
            return at
        at += 1
    return -1


def _fault(line: _Line, why: str) -> YamlError:
    return YamlError(f"line {line.number}, {line.text[:60]!r}: {why}")
