"""Placeholders: `{tp}` in a user's command, wherever it stands, gives way to a value."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Collection, Mapping

from zenith_tune.errors import CommandError
from zenith_tune.shell import ParsedCommand, plain_value
from zenith_tune.shell.launchers import BACKGROUND, LEAVE_OUT
from zenith_tune.shell.lexer import Operator, Part, Quote, Token, Word
from zenith_tune.study.parameters import Value

# ${name} is the shell's own, and {{name}} belongs to templates of other programs.
_IN_BACKGROUND = re.compile(r"(?<![&\\])&\s*\Z")
_PLACEHOLDER = re.compile(r"(?<![${])\{([A-Za-z_]\w*)\}(?!\})")


def placeholder_names(text: str, known: Collection[str]) -> set[str]:
    """Return which of the known names a text has placeholders for.

    >>> sorted(placeholder_names("python train.py --tp {tp} --out ${mbs} {other}", ["tp", "mbs"]))
    ['tp']
    """
    return {match[1] for match in _PLACEHOLDER.finditer(text)} & set(known)


def misspelt_placeholder(text: str, known: Collection[str]) -> tuple[str, str] | None:
    """Return the first placeholder that is nearly a known name, and that name."""
    for match in _PLACEHOLDER.finditer(text):
        close = difflib.get_close_matches(match[1], known, n=1, cutoff=0.75)
        if match[1] not in known and close:
            return match[1], close[0]
    return None


def unknown_placeholder(text: str, known: Collection[str]) -> str | None:
    """Return the first unknown name in braces, in a command that has placeholders.

    What stands in quotes without any placeholder is another program's: `awk '{print}'`, or a format of its own.
    """
    if not placeholder_names(text, known):
        return None
    for part in (part for token in ParsedCommand.of(text).tokens for part in _parts(token)):
        names = [match[1] for match in _PLACEHOLDER.finditer(text, part.start, part.end)]
        if part.quote is Quote.NONE or not {*known}.isdisjoint(names):
            unknown = next((name for name in names if name not in known), None)
            if unknown is not None:
                return unknown
    return None


def fill_placeholders(text: str, params: Mapping[str, Value]) -> tuple[str, set[str]]:
    """Return the text with its placeholders filled, and the names that were used.

    >>> fill_placeholders("MBS={mbs} bash -c 'python train.py --tp {tp}'", {"tp": 4, "mbs": 1, "pp": 2})[0]
    "MBS=1 bash -c 'python train.py --tp 4'"
    """
    values = {name: plain_value(params[name]) for name in placeholder_names(text, params)}
    needs_quotes = any(shlex.quote(value) != value for value in values.values())
    parts = [part for token in ParsedCommand.of(text).tokens for part in _parts(token)] if needs_quotes else []
    unquoted = [part for part in parts if part.quote is Quote.NONE and not part.dynamic]

    def filled(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is None:
            return match[0]
        quoted = shlex.quote(value)
        if quoted == value or any(part.start <= match.start() and match.end() <= part.end for part in unquoted):
            return quoted
        problem = f"a value with blanks, quotes or other signs of the shell can only fill {match[0]} outside quotes"
        raise CommandError(f"{problem}, but got {value!r}", hint=f"take the quotes around {match[0]} away")

    return _PLACEHOLDER.sub(filled, text), set(values)


def fill_or_set(
    command: str, options: Mapping[str, str], values: Mapping[str, Value], *, keeps_names: bool = False
) -> str:
    """Return a command whose placeholders are filled, and in which the options of all other values are set.

    With `keeps_names` an option is spelled as it is given, whatever the command's own look like.

    >>> fill_or_set("TP={tp} python train.py", {"tp": "--tp", "mbs": "--mbs"}, {"tp": 4, "mbs": 2})
    'TP=4 python train.py --mbs 2'
    """
    text, filled = fill_placeholders(command, values)
    if filled and _IN_BACKGROUND.search(text):
        raise CommandError(f"{BACKGROUND}, but it ends with '&'", hint=LEAVE_OUT)
    left = {option: values[name] for name, option in options.items() if name in values and name not in filled}
    return ParsedCommand.of(text).set(left, keeps_names=keeps_names).text if left else text


def _parts(token: Token) -> tuple[Part, ...]:
    if isinstance(token, Operator):
        return ()
    return token.parts if isinstance(token, Word) else token.target.parts
