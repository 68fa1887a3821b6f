"""The long options among a program's arguments, however they are spelled."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from zenith_tune.shell.lexer import Part, Quote, Word

_OPTION = re.compile(r"--([A-Za-z0-9][\w.-]*)(=)?", re.ASCII)
_NEGATIVE_NUMBER = re.compile(r"-\.?[0-9]")


class OptionWord(NamedTuple):
    """One occurrence of an option and the word that may be its value."""

    name: str
    """The canonical spelling: two dashes, then hyphens."""
    word: Word
    equals: int
    """The place of the equals sign in the word's value, or -1."""
    value: Word | None
    """The next word, unless that is an option itself."""


class Spelling(NamedTuple):
    """The way a program's options are written, so that added ones look like those that are there."""

    underscores: bool
    equals: bool

    def write(self, option: str, value: str | None = None) -> str:
        """Return an option in this spelling; a value that begins with a minus is always tied to it."""
        name = "--" + option[2:].replace("-", "_") if self.underscores else option
        if value is None:
            return name
        return f"{name}{self.separator(value)}{shlex.quote(value)}"

    def separator(self, value: str) -> str:
        """Return what stands between an option and its value: argparse would take a lone `-1` for an option."""
        return "=" if self.equals or value.startswith("-") else " "


def canonical(option: str) -> str:
    """Return an option's name with two dashes and hyphens."""
    return "--" + option.lstrip("-").replace("_", "-")


def own_words(words: Sequence[Word], first: int) -> Sequence[Word]:
    """Return the arguments in which options are read: those before a bare `--`."""
    for index in range(first, len(words)):
        if words[index].value == "--":
            return words[first:index]
    return words[first:]


def read_options(words: Sequence[Word]) -> list[OptionWord]:
    """Return every long option in order."""
    found = []
    for index, word in enumerate(words):
        match = _OPTION.match(word.value)
        if match is None or match.end() > word.static or (match[2] is None and match.end() != len(word.value)):
            continue
        equals = match.end() - 1 if match[2] else -1
        following = words[index + 1] if equals < 0 and index + 1 < len(words) else None
        value = following if following is not None and not looks_like_option(following) else None
        found.append(OptionWord("--" + match[1].replace("_", "-"), word, equals, value))
    return found


def looks_like_option(word: Word) -> bool:
    """Tell whether a program takes a word for an option: it begins with a dash, and is no negative number."""
    value = word.value
    return len(value) > 1 and value.startswith("-") and not _NEGATIVE_NUMBER.match(value)


def spelling_of(options: Iterable[OptionWord]) -> Spelling:
    """Return how the majority of options are spelled; hyphens and a blank where there is none."""
    underscores = equals = 0
    for option in options:
        name = option.word.value[2:].partition("=")[0]
        underscores += ("_" in name and "-" not in name) - ("-" in name and "_" not in name)
        equals += (option.equals >= 0) - (option.value is not None)
    return Spelling(underscores > 0, equals > 0)


class Splice(NamedTuple):
    """A text that replaces what stands from `start` to `end`."""

    start: int
    end: int
    text: str


def apply_splices(text: str, splices: Iterable[Splice]) -> str:
    """Return `text` with every splice done; they must not overlap."""
    in_order = sorted(splices, key=lambda each: each[:2])
    # From right to left, places to the left stay true; of two insertions at one place the first ends up in front.
    for splice in reversed(in_order):
        text = text[: splice.start] + splice.text + text[splice.end :]
    return text


def deletion(text: str, word: Word) -> Splice:
    """Return what takes a word out of a text, with the blank before it unless a redirection touches the word."""
    has_blank = text[word.start - 1 : word.start] in (" ", "\t") and not text.startswith(("<", ">"), word.end)
    return Splice(word.start - has_blank, word.end, "")


def splices_in_source(word: Word, splices: Iterable[Splice]) -> list[Splice]:
    """Turn splices of a word's value into splices of the source, escaped for the quotes that they fall into."""
    found = []
    for splice in splices:
        if splice.start == splice.end:
            found.append(_insertion(word, splice))
            continue
        begin, text = 0, splice.text
        for part in word.parts:
            low, high = max(splice.start, begin), min(splice.end, begin + len(part.value))
            if low < high:
                start, end = _source_span(part, low - begin, high - begin)
                found.append(Splice(start, end, _escaped(text, part.quote)))
                text = ""
            begin += len(part.value)
    return found


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
        return re.sub(r'([\\"$`])', r"\\\1", text)
    if quote is Quote.ANSI:
        return re.sub(r"([\\'])", r"\\\1", text)
    return shlex.quote(text) if text else ""
