"""The environment variables that a command sets for its program: in front of it, behind `env`, or by `export`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zenith_tune.shell.lexer import Word
from zenith_tune.shell.options import Splice, apply_splices
from zenith_tune.shell.parsed_command import ParsedCommand, script_text
from zenith_tune.shell.target import Layer, SimpleCommand, splices_through

_DECLARES = frozenset(("export", "declare", "typeset", "local", "readonly"))


def set_variables(command: str) -> dict[str, str]:
    """Return the variables that a command sets, each with the last value as it is written, without its quotes."""
    pairs = (word.value.partition("=") for _, word in _setting_words(ParsedCommand.of(command)))
    return {name: value for name, equals, value in pairs if equals and name.isidentifier()}


def with_variables(command: str, values: Mapping[str, str]) -> str:
    """Return the command with these values, written for the shell, wherever it sets a variable of that name.

    >>> with_variables("A=1 bash -c 'export B=2; python train.py'", {"B": '"$C"', "D": "4"})
    'A=1 bash -c \\'export B="$C"; python train.py\\''
    """
    splices: list[Splice] = []
    for layers, word in _setting_words(ParsedCommand.of(command)):
        name, equals, _ = word.value.partition("=")
        if equals and name in values:
            splices += splices_through(layers, [Splice(word.start, word.end, f"{name}={values[name]}")])
    return apply_splices(command, splices)


def _setting_words(command: ParsedCommand) -> Iterator[tuple[Sequence[Layer], Word]]:
    """Yield the words that set variables for the program, each with the shells that its text is nested in."""
    target = command.found_target
    if target is None:  # what stands in front of its programs can be seen all the same
        yield from (((), word) for word in _set_in(command.commands, None))
        return
    for depth, layer in enumerate(target.layers):
        yield from ((target.layers[:depth], word) for word in _set_in(layer.commands, layer.word))
    yield from ((target.layers, word) for word in _set_in(target.commands, target.words[target.first - 1]))


def _set_in(commands: Sequence[SimpleCommand], program: Word | None) -> Iterator[Word]:
    """Yield the words that set variables in a text, in which `program` is what its launchers come down to."""
    for command in commands:
        yield from command.assignments
        if command.words and command.words[0].value in _DECLARES:
            yield from command.words[1:]
        elif program in command.words:
            yield from command.words[1 : command.words.index(program)]


def fixed_in_script(command: str, name: str) -> tuple[str, str] | None:
    """Return the script of a command and the line in which it sets the variable `name` whatever that was before.

    None where it does not, where a line up to there looks at the variable first, and where that is unknown.
    """
    target = ParsedCommand.of(command).found_target
    if target is None:
        return None
    script = target.words[target.first - 1]
    if not script.is_static or (target.changes_folder and not Path(script.value).is_absolute()):
        return None
    if script.value.endswith(".py"):
        looks = rf"""["']{name}["']"""
        # Further in, in a function or behind an `if`, it may never be run.
        fixes = rf"^os\.environ\[{looks}\]\s*=(?!=)(?!.*{looks})"
    elif target.by_shell:
        looks = rf"\$\{{?{name}\b"
        fixes = rf"^(?!.*{looks})(?:[^#]*[\s;&|(])?{name}="
    else:
        return None
    for line in script_text(script.value).splitlines():
        code = line.partition(" #")[0]
        if re.search(fixes, code):
            return script.value, code.strip()
        if re.search(looks, code):
            return None
    return None
