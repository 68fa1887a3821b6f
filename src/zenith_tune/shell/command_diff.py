"""How one command differs from another: an option or an argument at a time, as `diff` writes it."""

from __future__ import annotations

import difflib
import re

from zenith_tune.errors import CommandError
from zenith_tune.shell.lexer import Word, lex
from zenith_tune.shell.parsed_command import OVERRIDE
from zenith_tune.shell.scripts.opened import training_line

VALUE = re.compile(r"-?\d|[^-]")
"""The begin of a word that is an option's value: a negative number is one."""


def command_diff(before: str, after: str) -> list[str]:
    """Return the lines that differ; none of a text that is no command."""
    try:
        old, new = _parts(training_line(before)), _parts(training_line(after))
    except CommandError:  # a record may hold anything
        return []
    return [line for line in difflib.ndiff(old, new) if line[:1] in "+-"]


def _parts(command: str) -> list[str]:
    """Return the words of a command, each option with its value."""
    parts: list[str] = []
    for token in lex(command):
        word = command[token.start : token.end]
        has_option = isinstance(token, Word) and bool(parts) and parts[-1].startswith("-") and "=" not in parts[-1]
        if has_option and VALUE.match(word) and not OVERRIDE.match(word):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    return parts
