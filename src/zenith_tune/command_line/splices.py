"""Splices: the only way a user's command is edited, so that no other byte of it changes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from typing import NamedTuple

from zenith_tune.command_line.shell_tokens import Part, Quote, Word

_ACTIVE_IN_DOUBLE = re.compile(r'([\\"$`])')
_ACTIVE_IN_ANSI = re.compile(r"([\\'])")


class Splice(NamedTuple):
    """Put `text` in place of what stands from `start` to `end`."""

    start: int
    end: int
    text: str


def apply_splices(text: str, splices: Iterable[Splice]) -> str:
    """Return `text` with every splice done; they must not overlap.

    >>> apply_splices("--tp 4 --pp 2", [Splice(5, 6, "8"), Splice(12, 13, "1")])
    '--tp 8 --pp 1'
    """
    in_order = sorted(splices, key=lambda each: each[:2])
    # From right to left, places to the left stay true; of two insertions at one place the first ends up in front.
    for splice in reversed(in_order):
        text = text[: splice.start] + splice.text + text[splice.end :]
    return text


def splices_in_source(word: Word, splices: Iterable[Splice]) -> list[Splice]:
    """Turn splices of a word's value into splices of the source, escaped for the quotes that they fall into."""
    return [found for splice in splices for found in _splices_in_source(word, splice)]


def _splices_in_source(word: Word, splice: Splice) -> list[Splice]:
    if splice.start == splice.end:
        return [_insertion(word, splice)]
    pieces = []
    begin, text = 0, splice.text
    for part in word.parts:
        low, high = max(splice.start, begin), min(splice.end, begin + len(part.value))
        if low < high:
            start, end = _source_span(part, low - begin, high - begin)
            pieces.append(Splice(start, end, _escaped(text, part.quote)))
            text = ""
        begin += len(part.value)
    return pieces


def _insertion(word: Word, splice: Splice) -> Splice:
    begin = 0
    for part in word.parts:
        if part.value and begin < splice.start <= begin + len(part.value):
            _, at = _source_span(part, 0, splice.start - begin)
            return Splice(at, at, _escaped(splice.text, part.quote))
        begin += len(part.value)
    first = word.parts[0]
    return Splice(first.start, first.start, _escaped(splice.text, first.quote))


def _source_span(part: Part, low: int, high: int) -> tuple[int, int]:
    if len(part.value) != part.end - part.start:
        return part.start, part.end
    return part.start + low, part.start + high


def _escaped(text: str, quote: Quote) -> str:
    if quote is Quote.SINGLE:
        return text.replace("'", "'\\''")
    if quote is Quote.DOUBLE:
        return _ACTIVE_IN_DOUBLE.sub(r"\\\1", text)
    if quote is Quote.ANSI:
        return _ACTIVE_IN_ANSI.sub(r"\\\1", text)
    return shlex.quote(text) if text else ""
