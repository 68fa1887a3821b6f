"""The place where a program's own arguments begin, behind whatever launchers stand in front of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from zenith_tune.errors import CommandError
from zenith_tune.shell.launcher_catalog import LAUNCHERS, MODULES, OPAQUE, SHELLS, STARTERS, TRAINERS, Launcher
from zenith_tune.shell.lexer import Word

BACKGROUND, LEAVE_OUT = "a training program must not run in the background", "leave the & out"
HINT = "write {tp}, {mbs} ... where the values belong, anywhere in the command or in an environment assignment"
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(?:\[[^]]*\])?\+?=", re.ASCII)

_SCRIPTS = (".py", ".sh", ".bash")
_SHELL_SCRIPTS = (".sh", ".bash")
EVALUATED = 'eval "$zenithtune_command"'
"""How a shell text runs the training command that is its first argument: behind `bash -c TEXT NAME`."""
PYTHON = re.compile(r"python[0-9.]*t?|pypy[0-9.]*")


class Arguments(NamedTuple):
    """The place of the program's own arguments: they begin at word `first`, and the word before names the program."""

    first: int
    by_shell: bool = False
    """Whether that program is a shell script."""


class ShellText(NamedTuple):
    """The place of a shell text that starts the program: a word's value from `offset` on."""

    word: int
    offset: int = 0
    is_posix: bool = False
    """Whether sh reads it rather than bash."""


def refusal(problem: str, part: str, hint: str = HINT) -> CommandError:
    """Return the error for a command with no safe place; whoever shows it masks the secrets of the command."""
    shown = part if len(part) <= 60 else part[:57] + "..."
    return CommandError(f"{problem}, but the training command has {shown!r}", hint=hint)


def shown_text(words: Sequence[Word]) -> str:
    """Return words as a message shows them."""
    return " ".join(word.value for word in words)


def program_name(word: Word) -> str | None:
    """Return a program's name without its folder, or None where only the shell will know it.

    The folder may be dynamic: `~/env/bin/python` and `$VENV/bin/python` are python.
    """
    folder = word.value.rfind("/") + 1
    known_from = 0
    position = 0
    for part in word.parts:
        position += len(part.value)
        known_from = position if part.dynamic else known_from
    return word.value[folder:] if known_from <= folder and word.value else None


def starts_nothing(words: Sequence[Word]) -> bool:
    """Tell whether a launcher is called for something else, as in `uv sync` or `accelerate config`."""
    launcher = LAUNCHERS.get(program_name(words[0]) or "")
    return launcher is not None and _after_subcommands(launcher, words, 1) is None


def locate(words: Sequence[Word], at: int = 0) -> Arguments | ShellText:
    """Find the arguments of the program that the command at word `at` comes down to."""
    if at >= len(words):
        raise refusal("a launcher must be followed by the program that it starts", words[-1].value)
    name = program_name(words[at])
    if name is None:
        raise refusal("the training program must be written out", words[at].value)
    if name in OPAQUE:
        raise refusal(f"{name} builds command lines of its own", words[at].value)
    if name in SHELLS:
        return _after_shell(words, at + 1)
    if PYTHON.fullmatch(name):
        return _after_python(words, at + 1)
    if launcher := LAUNCHERS.get(name):
        return _after_launcher(launcher, words, at + 1)
    return _after_other(name, words, at + 1)


def _after_shell(words: Sequence[Word], at: int) -> Arguments | ShellText:
    name, is_text = program_name(words[at - 1]) or "", False
    while at < len(words) and re.match(r"[-+]\w|--", words[at].value):
        option = words[at].value
        at += 1
        if option == "--":
            break
        if option.startswith("--"):
            at += option in ("--rcfile", "--init-file")
            continue
        if "s" in option:
            raise refusal(f"{name} must be given a script or -c", f"{name} {option}")
        is_text |= option.startswith("-") and "c" in option
        at += option.count("o") + option.count("O")
    if at >= len(words) or words[at].value == "-":
        raise refusal(f"{name} must be given a script or -c, not read its program from its input", name)
    if is_text and EVALUATED in words[at].value and at + 2 < len(words):
        return ShellText(at + 2)
    return ShellText(at, is_posix=name in ("sh", "dash")) if is_text else Arguments(at + 1, by_shell=True)


def _after_python(words: Sequence[Word], at: int) -> Arguments | ShellText:
    name = words[at - 1].value
    while at < len(words) and words[at].value.startswith("-") and words[at].value != "-":
        option = words[at].value
        if option.startswith("--"):
            at += 2 if option == "--check-hash-based-pycs" else 1
            continue
        match = re.match(r"-[^cmXW]*(?:([cmXW])(.*))?", option, re.DOTALL)
        letter, attached = match.groups() if match else (None, None)
        at += 2 if letter and not attached else 1
        if letter == "c":
            return Arguments(at)
        if letter == "m":
            module = attached or _value(words, at - 1)
            if not module:
                raise refusal("python -m must be followed by a module", words[-1].value)
            launcher = MODULES.get(module)
            return _after_launcher(launcher, words, at) if launcher else Arguments(at)
    if at >= len(words) or words[at].value == "-":
        raise refusal(f"{name} must be given a script or a module, not read its program from its input", name)
    if not words[at].static and not words[at].value.endswith(_SCRIPTS):
        # A variable may hold options of Python's, which has no long ones: the script is then the word that looks so.
        rest = range(at, next((i for i in range(at, len(words)) if words[i].value.startswith("--")), len(words)))
        return Arguments(next((i for i in rest if words[i].value.endswith(_SCRIPTS)), at) + 1)
    return Arguments(at + 1)


def _value(words: Sequence[Word], at: int) -> str:
    return words[at].value if at < len(words) else ""


def _after_launcher(launcher: Launcher, words: Sequence[Word], at: int) -> Arguments | ShellText:
    start = _after_subcommands(launcher, words, at)
    if start is None:
        raise refusal("the command must start a training program", shown_text(words[:3]))
    if text := _text_option(launcher, words, start):
        return text
    if any(word.value == ":" for word in words[start:]) and "np" in launcher.values:
        raise refusal("mpirun must start one program", ":")
    after = _after_options(launcher, words, start)
    program = _guess(words, start) if after is None else after + launcher.positionals
    if launcher.positionals and _value(words, program).startswith("-"):  # as in `flock FILE -c TEXT`
        raise refusal("a launcher must be followed by the program that it starts", words[program].value)
    while ASSIGNMENT.match(_value(words, program)):
        program += 1
    without_python = any(word.value in ("--no-python", "--no_python") for word in words[start:program])
    if not launcher.starts_script or without_python:
        return locate(words, program)
    if program >= len(words):
        raise refusal("a launcher must be followed by the program that it starts", words[at - 1].value)
    return Arguments(program + 1, by_shell=bool(launcher.shell_text))


def _after_subcommands(launcher: Launcher, words: Sequence[Word], at: int) -> int | None:
    for subcommand in launcher.subcommands:
        found = _after_options(launcher, words, at)
        if found is None or _value(words, found) != subcommand:
            return None
        at = found + 1
    return at


def _text_option(launcher: Launcher, words: Sequence[Word], at: int) -> ShellText | None:
    option = f"--{launcher.shell_text}"
    for index in range(at, len(words) if launcher.shell_text else 0):
        if words[index].value.startswith(option + "="):
            return ShellText(index, len(option) + 1, is_posix=True)
        if words[index].value == option and index + 1 < len(words):
            return ShellText(index + 1, is_posix=True)
    return None


def _after_options(launcher: Launcher, words: Sequence[Word], at: int) -> int | None:
    """Return the first word that is not one of the launcher's options, or None where that is unknown."""
    while at < len(words):
        value = words[at].value
        if not words[at].static and not words[at].is_static:
            return at if value.endswith(_SCRIPTS) else None
        if value == "--":
            return at + 1
        if not value.startswith("-") or value == "-":
            return at
        taken = _words_taken(launcher, value)
        if taken is None:
            return None
        at += taken
    return at


def _words_taken(launcher: Launcher, option: str) -> int | None:
    name, equals, _ = option.lstrip("-").replace("_", "-").partition("=")
    if equals or name in launcher.flags or name.isdecimal():
        return 1
    if name in launcher.values:
        return 1 + launcher.values[name]
    if option.startswith("--"):
        is_of_family = any(known.endswith("*") and name.startswith(known[:-1]) for known in launcher.values)
        return 2 if is_of_family else None
    for index, letter in enumerate(name):
        if letter in launcher.values:
            # In -n2 the value touches its letter; in -ln 2 it follows.
            return 1 if index + 1 < len(name) else 1 + launcher.values[letter]
        if letter not in launcher.flags:
            return None
    return 1


def _guess(words: Sequence[Word], at: int) -> int:
    """Return the first word that looks like a script or an interpreter, past unknown options."""
    for index in range(at, len(words)):
        name = program_name(words[index]) or ""
        if PYTHON.fullmatch(name) or name in STARTERS or words[index].value.rstrip("}").endswith(_SCRIPTS):
            return index
    raise refusal("it must be clear where the launcher's own options end", words[at].value if at < len(words) else "")


def _after_other(name: str, words: Sequence[Word], at: int) -> Arguments | ShellText:
    if name in TRAINERS or name.endswith(_SCRIPTS):
        return Arguments(at, by_shell=name.endswith(_SHELL_SCRIPTS))
    for index in range(at, len(words)):
        # What follows a bare option may be its value, as in `--entrypoint python`.
        if not re.fullmatch(r"--[\w.-]+", words[index - 1].value):
            inner = program_name(words[index]) or ""
            if PYTHON.fullmatch(inner) or inner in STARTERS:
                return locate(words, index)
            if words[index].value.endswith(_SCRIPTS):
                return Arguments(index + 1, by_shell=words[index].value.endswith(_SHELL_SCRIPTS))
    return Arguments(at)
