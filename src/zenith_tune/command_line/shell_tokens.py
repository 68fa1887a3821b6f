"""The tokens of a shell text: words, redirections and operators, each with its exact place in the source."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

# The tokens are named tuples: a command is read in tens of microseconds, and frozen dataclasses would double that.


class Quote(Enum):
    """Say what surrounds a part of a word."""

    NONE = "none"
    SINGLE = "'"
    DOUBLE = '"'
    ANSI = "$'"


class Part(NamedTuple):
    """Hold a stretch of a word: its source span, and what the shell makes of it.

    A value is as long as its span, character for character, or it is the one character of an escape, or nothing.
    """

    quote: Quote
    dynamic: bool
    """Whether the shell expands it; `value` is then the source."""
    start: int
    end: int
    value: str


class Word(NamedTuple):
    """Hold a word: its span with quotes, its value without, and how much of that value is known before it runs."""

    start: int
    end: int
    value: str
    static: int
    parts: tuple[Part, ...]

    @property
    def is_static(self) -> bool:
        """Tell whether the shell expands nothing in it."""
        return self.static == len(self.value)


class Redirection(NamedTuple):
    """Hold a redirection with the word it points at, such as `2>&1` or `> log`."""

    start: int
    end: int
    operator: str
    target: Word


class Operator(NamedTuple):
    """Hold a control operator, a newline, or a comment (as `#`)."""

    start: int
    end: int
    text: str


Token = Word | Redirection | Operator
