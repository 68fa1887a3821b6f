"""How one command differs from another: an option, an argument or a file at a time, as `diff` writes it."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from zenith_tune.errors import CommandError
from zenith_tune.shell.lexer import Word, lex
from zenith_tune.study.files import read_regular

OVERRIDE = re.compile(r"\+{0,2}[A-Za-z_][\w.]*=")
MAX_FILE_BYTES = 1 << 20


def command_diff(before: str, after: str) -> list[str]:
    """Return the lines that differ; of a file that takes the place of another, what differs in it too.

    None of a text that is no command.

    >>> command_diff("python train.py --lr 1 --tp 4", "python train.py --lr 1 --tp 2 --fused")
    ['- --tp 4', '+ --tp 2', '+ --fused']
    """
    try:
        old, new = _parts(before), _parts(after)
    except CommandError:  # a record may hold anything
        return []
    lines = [line for line in difflib.ndiff(old, new) if line[:1] in "+-"]
    gone, come = ([line[2:] for line in lines if line[0] == sign] for sign in "-+")
    files = [(_file_of(mine), _file_of(theirs)) for mine, theirs in zip(gone, come, strict=False)]
    return [*lines, *(line for mine, theirs in files if mine and theirs for line in _file_diff(mine, theirs))]


def _parts(command: str) -> list[str]:
    """Return the words of a command, each option with its value."""
    parts: list[str] = []
    for token in lex(command):
        word = command[token.start : token.end]
        joins = isinstance(token, Word) and bool(parts) and parts[-1].startswith("-") and " " not in parts[-1]
        if joins and "=" not in parts[-1] and not word.startswith("-") and not OVERRIDE.match(word):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    return parts


def _file_of(part: str) -> Path | None:
    path = Path(re.split(r"[ =]", part)[-1])
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None


def _file_diff(before: Path, after: Path) -> list[str]:
    try:
        texts = [read_regular(path, MAX_FILE_BYTES).decode(errors="replace") for path in (before, after)]
    except OSError:
        return []
    old, new = (text.splitlines() for text in texts)
    return list(difflib.unified_diff(old, new, str(before), str(after), n=0, lineterm=""))
