"""A user's training command, read once: its options, whatever their spelling, and edited copies of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path

from zenith_tune.errors import CommandError
from zenith_tune.shell.launchers import ASSIGNMENT
from zenith_tune.shell.lexer import BUILTINS, Word, lex
from zenith_tune.shell.options import (
    OptionWord,
    Spelling,
    Splice,
    apply_splices,
    canonical,
    deletion,
    own_words,
    read_options,
    spelling_of,
    splices_in_source,
)
from zenith_tune.shell.rank_launcher import RankLauncher, StartedProgram
from zenith_tune.shell.target import SimpleCommand, Target, find_target, simple_commands, splices_through
from zenith_tune.study.files import open_regular
from zenith_tune.study.parameters import Value
from zenith_tune.units import whole

_EMPTY = "the training command is empty: give it after --"
_SCRIPT_READ_BYTES = 1 << 20
_SETS_PATH = re.compile(r"(?:^|[\s;&|(])PATH=")
OVERRIDE = re.compile(r"(\+{0,2}[A-Za-z_][\w.]*)=", re.ASCII)
_PLAIN_WORD = re.compile(r"(?:[\w@%+=:,./-]|\{[A-Za-z_]\w*\})+", re.ASCII)

_OUTPUT = re.compile(r"(?:^|[\s;\"')])(?:1|&)?>>?\s*([\w./$~{}-]+)")


def plain_value(value: Value) -> str:
    """Return a value as a program reads it: booleans are true or false, floats keep every digit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


class ParsedCommand:
    """A shell command, which is edited in copies; nothing of it is ever run.

    A text is read once: `of` returns the same value for the same text.

    >>> print(ParsedCommand.of("torchrun --nproc-per-node 8 train.py --lr=1 > log").set({"--seed": 2, "--lr": 3}))
    torchrun --nproc-per-node 8 train.py --lr=3 --seed=2 > log
    """

    def __init__(self, text: str) -> None:
        if not text.strip():
            raise CommandError(_EMPTY)
        self.text = text
        self.tokens = tuple(lex(text))

    @staticmethod
    @lru_cache(maxsize=256)
    def of(text: str) -> ParsedCommand:
        return ParsedCommand(text)

    @classmethod
    def from_argv(cls, tokens: Sequence[str]) -> ParsedCommand:
        """Make a command from words: several are taken literally, a single one is shell text unless it names a file."""
        if not any(token.strip() for token in tokens):
            raise CommandError(_EMPTY)
        if len(tokens) == 1:
            with suppress(OSError, ValueError):
                if Path(tokens[0]).is_file() or shutil.which(tokens[0]) is not None:
                    return cls.of(_quoted(tokens[0]))
            return cls.of(tokens[0])
        num_assignments = next((i for i, token in enumerate(tokens) if not ASSIGNMENT.match(token)), len(tokens))
        # Of an assignment only the value is quoted: with its name in quotes, the shell would take it for a program.
        pairs = (token.partition("=") for token in tokens[:num_assignments])
        assignments = [f"{name}={_quoted(value) if value else ''}" for name, _, value in pairs]
        return cls.of(" ".join([*assignments, *map(_quoted, tokens[num_assignments:])]))

    def __str__(self) -> str:
        return self.text

    def set(self, options: Mapping[str, Value], *, keeps_names: bool = False) -> ParsedCommand:
        """Return the command with these options: what is there is replaced, what is not is added.

        An option that is added is spelled like those that are there; with `keeps_names`, as it is given.
        """
        text = self.target.text
        names = {canonical(name): name for name in options}
        wanted = {canonical(name): plain_value(value) for name, value in options.items()}
        spelling = self._spelling._replace(underscores=False) if keeps_names else self._spelling
        splices: list[Splice] = []
        for option in self._options:
            if option.name in wanted:
                splices += _new_value(text, option, wanted[option.name], self._spelling)
        present = {option.name for option in self._options}
        added = [
            spelling.write(names[name] if keeps_names else name, value)
            for name, value in wanted.items()
            if name not in present
        ]
        return self._edited(splices, added)

    @property
    def overrides(self) -> dict[str, str]:
        """The program's arguments of the form KEY=VALUE, as Hydra and OmegaConf read them; the last of a key."""
        return {match[1]: word.value[match.end() :] for word, match in self._override_words}

    def override(self, values: Mapping[str, Value]) -> ParsedCommand:
        """Return the command with such arguments: what is there is replaced, what is not is added at the end."""
        if not values:
            return self  # which may have no program to give them to
        text, wanted = self.target.text, {key: plain_value(value) for key, value in values.items()}
        splices = [
            splice
            for word, match in self._override_words
            if match[1] in wanted
            for splice in _within(text, word, match.end(), wanted[match[1]])
        ]
        added = [f"{key}={shlex.quote(value)}" for key, value in wanted.items() if key not in self.overrides]
        return self._edited(splices, added)

    @property
    def arguments(self) -> list[str]:
        """The program's own arguments, expansions as they are written."""
        target = self.found_target
        return [word.value for word in own_words(target.words, target.first)] if target else []

    def with_argument(self, old: str, new: str) -> ParsedCommand:
        """Return the command with another argument, or value of an option, in place of one."""
        target = self.target
        words = own_words(target.words, target.first)
        splices = [
            splice._replace(text=splice.text.replace(shlex.quote(new), _quoted(new)))
            for word in words
            if word.value == old or word.value.endswith(f"={old}")
            for splice in _within(target.text, word, len(word.value) - len(old), new)
        ]
        return self._edited(splices, [])

    def remove(self, option: str) -> ParsedCommand:
        """Return the command without an option that takes one value, and without that value."""
        text, name = self.target.text, canonical(option)
        gone = [word for each in self._options if each.name == name for word in (each.word, each.value) if word]
        return self._edited([deletion(text, word) for word in gone], [])

    def add_flag(self, option: str) -> ParsedCommand:
        """Return the command with a flag that takes no value, unless it is there in any spelling."""
        return self._edited([], [] if self.has(option) else [self._spelling.write(canonical(option))])

    def append(self, *words: str) -> ParsedCommand:
        """Return the command with further arguments at its end, written for the shell."""
        return self._edited([], words)

    def get(self, option: str) -> str | None:
        """Return the option's last value, expansions as they are written; "" for a bare flag, None if it is absent."""
        name = canonical(option)
        for each in reversed(self._options):
            if each.name == name and each.equals >= 0:
                return each.word.value[each.equals + 1 :]
            if each.name == name:
                return each.value.value if each.value else ""
        return None

    def count(self, *options: str | None) -> int | None:
        """Return the first whole number above 0 that one of these options has; None where none has any."""
        values = (whole(self.get(option) or "") for option in options if option)
        return next(filter(None, values), None)

    def is_on(self, option: str) -> bool:
        """Tell whether the program is given the option, and not to switch it off."""
        value = self.get(option)
        return value is not None and value.lower() not in ("false", "0", "no")

    def has(self, option: str) -> bool:
        """Tell whether the program is given the option, in any spelling."""
        name = canonical(option)
        return any(each.name == name for each in self._options)

    @cached_property
    def needs_shell(self) -> bool:
        """Whether the command uses shell syntax, so that only a shell can run it."""
        if not all(isinstance(token, Word) and token.is_static for token in self.tokens):
            return True
        command = self.commands[0]
        has_odd_assignment = any(not word.value.partition("=")[0].isidentifier() for word in command.assignments)
        return bool(command.keywords or has_odd_assignment or not command.words or command.words[0].value in BUILTINS)

    def argv(self) -> list[str]:
        """Return the words that run the command without a shell."""
        return [word.value for word in self._shell_free_command().words]

    def assignments(self) -> dict[str, str]:
        """Return the environment that the command sets in front of its program."""
        pairs = (word.value.partition("=") for word in self._shell_free_command().assignments)
        return {name: value for name, _, value in pairs}

    @property
    def program(self) -> str | None:
        """The program that the shell will look for, or None where only the shell can know it."""
        target = self.found_target
        words = target.outer_words if target else ()
        while words and words[0].value in ("exec", "command"):
            words = words[1:]
        if not words or not words[0].is_static or words[0].value.startswith("-") or _SETS_PATH.search(self.text):
            return None
        program = words[0].value
        moves = target is not None and target.changes_folder
        return None if moves and "/" in program and not program.startswith("/") else program

    def warnings(self, names: Sequence[str] = ("tp", "mbs")) -> list[str]:
        """Return remarks on what may keep added options from having an effect, one line each.

        `names` are placeholders that would help.
        """
        target = self.found_target
        if target is None or not target.by_shell:
            return []
        script = target.words[target.first - 1]
        if not script.is_static or (target.changes_folder and not Path(script.value).is_absolute()):
            return []
        text = script_text(script.value)
        if not text or re.search(r"\$\{?[@*1-9]|\bgetopts\b", text):
            return []
        problem = "does not seem to pass its arguments on, so the options that are added may have no effect"
        written = ", ".join(f"{{{name}}}" for name in names)
        hint = f'put "$@" at the end of its training command, or write {written} where the values belong'
        return [f"{script.value} {problem}: {hint}"]

    @property
    def output_file(self) -> str | None:
        """The file that the command, or a shell that it starts, writes its output to; None: to its caller."""
        found = _OUTPUT.search(self.text)
        return found[1] if found else None

    @cached_property
    def commands(self) -> tuple[SimpleCommand, ...]:
        return tuple(simple_commands(self.tokens))

    @property
    def target(self) -> Target:
        """The program that trains, or raise CommandError with the reason why that is unknown."""
        if isinstance(self._found, CommandError):
            # A fresh error: raising the kept one again would pile up tracebacks on it.
            raise CommandError(self._found.problem, hint=self._found.hint)
        return self._found

    @property
    def found_target(self) -> Target | None:
        """The program that trains, or None where that is unknown."""
        return None if isinstance(self._found, CommandError) else self._found

    @property
    def front(self) -> list[str]:
        """The words in front of the script's own arguments: launchers, their options, and the script."""
        target = self.found_target
        return [word.value for word in target.words[: target.first]] if target else []

    @cached_property
    def launcher(self) -> RankLauncher | None:
        """The launcher that starts the ranks, or None where there is none that can be seen."""
        return RankLauncher.find(self.text, self.found_target)

    @property
    def started(self) -> StartedProgram:
        """The launcher, or what runs the training program without one, for variables to be set."""
        return self.launcher or StartedProgram.of(self.text, self.target)

    @cached_property
    def _found(self) -> Target | CommandError:
        try:
            return find_target(self.text, self.commands)
        except CommandError as error:
            return error

    @cached_property
    def _options(self) -> list[OptionWord]:
        """The program's own options; none where it is unknown which program trains."""
        target = self.found_target
        return read_options(own_words(target.words, target.first)) if target else []

    @cached_property
    def _override_words(self) -> list[tuple[Word, re.Match[str]]]:
        target = self.found_target
        words = own_words(target.words, target.first) if target else ()
        found = [(word, match) for word in words if (match := OVERRIDE.match(word.value))]
        return [(word, match) for word, match in found if match.end() <= word.static]

    @cached_property
    def _spelling(self) -> Spelling:
        return spelling_of(self._options)

    def _shell_free_command(self) -> SimpleCommand:
        if self.needs_shell:
            raise CommandError("a command with shell syntax has no fixed words", hint="run it through bash -c")
        return self.commands[0]

    def _edited(self, splices: list[Splice], added: Sequence[str]) -> ParsedCommand:
        target = self.target
        if added:
            end = target.words[target.first + len(own_words(target.words, target.first)) - 1].end
            splices = [*splices, _insertion(target.text, end, " " + " ".join(added))]
        splices_of_all = splices_through(target.layers, splices)
        return ParsedCommand.of(apply_splices(self.text, splices_of_all)) if splices else self


def _new_value(text: str, option: OptionWord, value: str, spelling: Spelling) -> list[Splice]:
    """Return what puts `value` in place of the option's own, in the form that it has there."""
    word, old = option.word, option.value
    if option.equals >= 0:
        return _within(text, word, option.equals + 1, value)
    if old is None:
        return [_insertion(text, word.end, spelling.separator(value) + shlex.quote(value))]
    if value.startswith("-") and not (old.is_static and old.value == value):
        return [Splice(word.end, word.end, "=" + shlex.quote(value)), deletion(text, old)]
    return _within(text, old, 0, value)


def _within(text: str, word: Word, start: int, value: str) -> list[Splice]:
    """Return what replaces the rest of a word from `start` of its value on, inside the quotes that it has."""
    if word.is_static and word.value[start:] == value:
        return []
    if not value and not start:
        return [Splice(word.start, word.end, "''")]
    splices = splices_in_source(word, [Splice(start, len(word.value), value)])
    return [*splices, Splice(word.end, word.end, _guard(text, word.end))] if value.isdecimal() else splices


def _guard(text: str, at: int) -> str:
    """Return the blank that keeps a number from becoming the file descriptor of a redirection that it touches."""
    return " " if text.startswith(("<", ">"), at) else ""


def _insertion(text: str, at: int, new: str) -> Splice:
    return Splice(at, at, new + _guard(text, at))


def _quoted(token: str) -> str:
    """Quote a word for the shell, if it needs it; a placeholder such as {tp} does not."""
    return token if _PLAIN_WORD.fullmatch(token) else shlex.quote(token)


def script_text(path: str) -> str:
    """Return the beginning of a script's text, empty where it cannot be read."""
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            return file.read(_SCRIPT_READ_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""
