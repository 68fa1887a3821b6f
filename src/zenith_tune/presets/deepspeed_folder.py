"""Where a command's own paths begin: it may change the folder before it trains, and its shell may know a home."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from zenith_tune.command_line.shell_tokens import Word
from zenith_tune.command_line.shell_vocabulary import FOLDER_CHANGES
from zenith_tune.errors import UsageError
from zenith_tune.shell.lexer import lex
from zenith_tune.shell.target import SimpleCommand, Target, find_target, simple_commands

_IN_TURN = ("", "&&", ";", "\n", "(")
"""What may stand in front of a `cd` that surely runs."""


def path_in_training_folder(command: str, text: str) -> Path:
    """Return the path that the script means by an argument, or say that only the shell knows it.

    >>> str(path_in_training_folder("cd sub && deepspeed train.py --deepspeed_config ds.json", "ds.json"))
    'sub/ds.json'
    """
    target = find_target(command)
    is_home = any(word.value == text and _begins_at_home(word) for word in target.words)
    path = _at_home(text) if is_home else Path(text)
    if path.is_absolute() or not target.changes_folder:
        return path
    folder = _training_folder(command, target)
    if folder is None:
        law = "the DeepSpeed configuration must be found from here, but the command changes the folder in a way"
        raise UsageError(f"{law} that only its shell follows: give the absolute path of {text[:80]}")
    return folder / path


def _begins_at_home(word: Word) -> bool:
    """Tell whether the shell puts a home in: it does so for a word that begins with ~, and not within quotes."""
    return bool(word.parts) and word.parts[0].dynamic and word.parts[0].value.startswith("~")


def _at_home(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"nobody's home is {text.partition('/')[0][:80]}: give the absolute path") from None


def _training_folder(command: str, target: Target) -> Path | None:
    """Return the folder in which the script starts, as seen from here; None where it cannot be told."""
    folder = Path()
    for before in _commands_before(command, target):
        moves = [each for each in before if each.words and each.words[0].value in FOLDER_CHANGES]
        # A bracket that is closed again may have held the change.
        if moves and any(each.closer == ")" for each in before):
            return None
        for move in moves:
            where = _moved_to(move)
            if where is None:
                return None
            folder /= where
    return folder


def _commands_before(command: str, target: Target) -> Iterator[Sequence[SimpleCommand]]:
    """Yield what runs before the training, in each of the shells that it is nested in."""
    text = command
    for layer in target.layers:
        yield _before(text, layer.word)
        text = layer.word.value[layer.offset :]
    yield _before(text, target.words[0])


def _before(text: str, word: Word) -> list[SimpleCommand]:
    commands = list(simple_commands(lex(text)))
    return commands[: next((at for at, each in enumerate(commands) if word in each.words), len(commands))]


def _moved_to(move: SimpleCommand) -> Path | None:
    words = [word for word in move.words if word.value != "--"]
    if len(words) != 2 or words[0].value != "cd" or move.opener not in _IN_TURN or move.closer in ("|", "|&"):
        return None
    place, is_home = words[1], _begins_at_home(words[1])
    if place.value in ("", "-") or any(part.dynamic for part in place.parts[is_home:]):
        return None
    return _at_home(place.value) if is_home else Path(place.value)
