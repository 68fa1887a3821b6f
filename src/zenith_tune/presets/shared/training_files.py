"""The files that a training command names, and where they lie: DeepSpeed's JSON, and YAML."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zenith_tune.errors import UsageError
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.lexer import FOLDER_CHANGES, Word
from zenith_tune.shell.target import SimpleCommand, Target

CONFIG_OPTIONS = ("--deepspeed_config", "--deepspeed")
"""What a script calls its DeepSpeed configuration; --deepspeed alone may also be a flag without a value."""
_IN_TURN = ("", "&&", ";", "\n", "(")
"""What may stand in front of a `cd` that surely runs."""


class NamedConfig(NamedTuple):
    """The option of a command that names its DeepSpeed configuration, and the file."""

    option: str
    path: str

    @property
    def is_json(self) -> bool:
        return self.path.endswith(".json")


def find_config(command: str) -> NamedConfig | None:
    """Return the DeepSpeed configuration that a command names, or None."""
    line = ParsedCommand.of(command)
    named = (NamedConfig(option, path) for option in CONFIG_OPTIONS if (path := line.get(option)))
    return next(named, None)


def path_in_training_folder(command: str, text: str) -> Path:
    """Return the path that the script means by an argument, or say that only the shell knows it."""
    target = ParsedCommand.of(command).target
    is_home = any(word.value == text and _begins_at_home(word) for word in target.words)
    path = _at_home(text) if is_home else Path(text)
    if path.is_absolute() or not target.changes_folder:
        return path
    folder = _training_folder(target)
    if folder is None:
        problem = f"{text[:80]} must be found from here, but the command changes the folder in a way"
        raise UsageError(f"{problem} that only its shell follows", hint=f"give the absolute path of {text[:80]}")
    return folder / path


def _begins_at_home(word: Word) -> bool:
    """Return whether the shell puts a home in: it does so for a word that begins with ~, and not within quotes."""
    return bool(word.parts) and word.parts[0].dynamic and word.parts[0].value.startswith("~")


def _at_home(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UsageError(f"no such user: {text.partition('/')[0][:80]}", hint="give the absolute path") from None


def _training_folder(target: Target) -> Path | None:
    """Return the folder in which the script starts, as seen from here; None where it is unknown."""
    folder = Path()
    for before in _commands_before(target):
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


def _commands_before(target: Target) -> Iterator[Sequence[SimpleCommand]]:
    """Yield what runs before the training, in each of the shells that it is nested in."""
    texts = [*((layer.commands, layer.word) for layer in target.layers), (target.commands, target.words[0])]
    for commands, word in texts:
        yield commands[: next((at for at, each in enumerate(commands) if word in each.words), len(commands))]


def _moved_to(move: SimpleCommand) -> Path | None:
    words = [word for word in move.words if word.value != "--"]
    if len(words) != 2 or words[0].value != "cd" or move.opener not in _IN_TURN or move.closer in ("|", "|&"):
        return None
    place, is_home = words[1], _begins_at_home(words[1])
    if place.value in ("", "-") or any(part.dynamic for part in place.parts[is_home:]):
        return None
    return _at_home(place.value) if is_home else Path(place.value)


_BRACKETS = re.compile(r"[\[\]{}]")
_MOST_LEVELS = 200


def read_yaml(text: str) -> Any:
    """Return what a YAML text holds, or raise ValueError with the line that is wrong."""
    import yaml  # here, because only jobs with such a file pay for its import

    depths = itertools.accumulate(1 if match[0] in "[{" else -1 for match in _BRACKETS.finditer(text))
    if max(depths, default=0) > _MOST_LEVELS:  # the time to read them grows with their square
        raise ValueError(f"nested deeper than {_MOST_LEVELS} levels")
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {_MOST_LEVELS} levels") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ValueError(f"line {mark.line + 1}: {error.problem or error.context}" if mark else str(error)) from None
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def yaml_text(values: Mapping[str, Any]) -> str:
    """Return values as YAML, in their order."""
    import yaml

    text: str = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def flat(tables: Mapping[str, Any], front: str = "") -> dict[str, Any]:
    """Return nested values by path.

    >>> flat({"tokens": {"micro_batch_size": 2}, "seed": 1})
    {'tokens.micro_batch_size': 2, 'seed': 1}
    """
    found: dict[str, Any] = {}
    for name, value in tables.items():
        found |= flat(value, f"{front}{name}.") if isinstance(value, Mapping) else {f"{front}{name}": value}
    return found
