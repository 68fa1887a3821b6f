"""The launcher in a command that starts its ranks, torchrun, deepspeed or accelerate, and that launcher's options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from zenith_tune.shell.launcher_catalog import LAUNCHERS, SHELLS
from zenith_tune.shell.launchers import ASSIGNMENT, PYTHON, program_name
from zenith_tune.shell.lexer import Word
from zenith_tune.shell.options import Splice, apply_splices, canonical, deletion, looks_like_option
from zenith_tune.shell.target import Target, splices_through

TORCHRUN, DEEPSPEED, ACCELERATE = "torchrun", "deepspeed", "accelerate"
_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "deepspeed.launcher.runner": DEEPSPEED,
    "accelerate.commands.launch": ACCELERATE,
    "accelerate.commands.accelerate_cli": ACCELERATE,
}
_PROGRAMS = {"torchrun": TORCHRUN, "deepspeed": DEEPSPEED, "accelerate-launch": ACCELERATE, "accelerate": ACCELERATE}


class LauncherOption(NamedTuple):
    """One option of the launcher."""

    name: str
    """Name with hyphens, behind the dashes that it has."""
    value: str | None
    """Value; None for a switch."""
    is_static: bool
    """Whether its value is written out, rather than for the shell to find."""
    words: tuple[Word, ...]


class StartedProgram:
    """A program inside a command for which variables are set: a launcher, or what runs without one."""

    def __init__(self, command: str, target: Target, start: int) -> None:
        self._command, self._target, self._start = command, target, start

    @classmethod
    def of(cls, command: str, target: Target) -> StartedProgram:
        """Return the interpreter or the shell that runs what trains, or else the first program of the command."""
        names = [program_name(word) or "" for word in target.words[: target.first]]
        known = [at for at, name in enumerate(names) if PYTHON.fullmatch(name) or name in SHELLS]
        return cls(command, target, known[-1] if known else 0)

    def with_path(self, name: str, folder: str) -> str:
        """Return the command with a folder in front of a variable such as PYTHONPATH, whatever that holds."""
        own = self._assignment(name)
        if own is None:
            return self._edited(self._variables({name: f"{folder}${{{name}:+:${name}}}"}))
        at = own.start + len(name) + 1
        return self._edited([Splice(at, at, f"{folder}:")])

    def with_variables(self, values: Mapping[str, str]) -> str:
        """Return the command with these variables, written for the shell, in place of what it says of them."""
        return self._edited(self._variables(values))

    def _variables(self, values: Mapping[str, str]) -> list[Splice]:
        """Set variables for the program; one that the command sets already gets the new value."""
        own = {name: word for name in values if (word := self._assignment(name)) is not None}
        splices = [Splice(word.start, word.end, f"{name}={values[name]}") for name, word in own.items()]
        new = "".join(f"{name}={value} " for name, value in values.items() if name not in own)
        if not new:
            return splices
        at = self._target.words[self._start].start
        before = list(self._target.words[: self._start])
        while before and ASSIGNMENT.match(before[-1].value):
            before.pop()
        is_behind_env = before and program_name(before[-1]) == "env"
        return [*splices, Splice(at, at, f"{'' if is_behind_env else 'env '}{new}")]

    def _assignment(self, name: str) -> Word | None:
        """Return the word that sets a variable for the program: in front of its command, or behind `env`."""
        words = self._target.words
        command = next(each for each in self._target.commands if each.words == words)
        setting = [*command.assignments, *words[: self._start]]
        return next((word for word in setting if word.value.startswith(f"{name}=")), None)

    def _edited(self, splices: Sequence[Splice]) -> str:
        return apply_splices(self._command, splices_through(self._target.layers, splices))


class RankLauncher(StartedProgram):
    """The launcher and its options, which stand in front of the script; the script's own are left alone.

    >>> from zenith_tune.shell import ParsedCommand
    >>> launcher = ParsedCommand.of("srun torchrun --nproc_per_node 8 train.py --master-port 1").launcher
    >>> launcher.kind, launcher.option("--nproc-per-node"), launcher.option("--master-port")
    ('torchrun', '8', None)
    >>> launcher.with_options({"--master-port": "29511"})
    'srun torchrun --master-port 29511 --nproc_per_node 8 train.py --master-port 1'
    """

    def __init__(self, command: str, target: Target, kind: str, start: int, first: int) -> None:
        super().__init__(command, target, start)
        self.kind = kind
        self._first = first
        self.options = tuple(_options(target.words[first : target.first - 1], LAUNCHERS[kind].flags))

    @classmethod
    def find(cls, command: str, target: Target | None) -> RankLauncher | None:
        """Return the launcher of a command, or None where there is none that can be seen."""
        words = target.words[: target.first] if target else ()
        for index, word in enumerate(words):
            name, is_module = program_name(word) or "", index > 0 and words[index - 1].value == "-m"
            kind = _MODULES.get(word.value) if is_module else _PROGRAMS.get(name)
            has_subcommand = name == "accelerate" or word.value.endswith(".accelerate_cli")
            if kind is None or (has_subcommand and [each.value for each in words[index + 1 : index + 2]] != ["launch"]):
                continue
            assert target is not None
            pythons = [at for at in range(index) if PYTHON.fullmatch(program_name(words[at]) or "")]
            start = (pythons[-1] if pythons else index - 2) if is_module else index
            return cls(command, target, kind, start, index + 1 + has_subcommand)
        return None

    def option(self, *names: str) -> str | None:
        """Return the last value of an option under any of its names, "" of a switch; a short one is written -x."""
        return next((each.value or "" for each in reversed(self.options) if each.name in names), None)

    def with_options(
        self, options: Mapping[str, str], *, without: Sequence[str] = (), variables: Mapping[str, str] | None = None
    ) -> str:
        """Return the command with these options of the launcher in place of what it says; `without` are taken out.

        `variables` are set for the launcher, written for the shell.
        """
        gone = {_option_name(name) for name in (*options, *without)}
        words = [word for each in self.options if each.name in gone for word in each.words]
        added = "".join(f" {name} {value}" for name, value in options.items())
        at = self._target.words[self._first - 1].end
        splices = [*(deletion(self._target.text, word) for word in words), Splice(at, at, added)]
        return self._edited([*splices, *self._variables(variables or {})])


def last_option(words: Sequence[str], *names: str) -> str | None:
    """Return the last value of an option among words, in any spelling; short ones are given as -x."""
    found = None
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name.startswith("-") and _option_name(name) in names:
            found = value if equals else next(iter(words[index + 1 : index + 2]), None)
    return found


def _options(words: Sequence[Word], flags: frozenset[str]) -> Iterator[LauncherOption]:
    at = 0
    while at < len(words):
        word, follow = words[at], words[at + 1 : at + 2]
        at += 1
        if not word.value.startswith("-"):
            continue
        text, equals, value = word.value.partition("=")
        name = _option_name(text)
        if equals or name.lstrip("-") in flags or not follow or looks_like_option(follow[0]):
            yield LauncherOption(name, value if equals else None, word.is_static, (word,))
        else:
            at += 1
            yield LauncherOption(name, follow[0].value, follow[0].is_static, (word, *follow))


def _option_name(name: str) -> str:
    return canonical(name) if name.startswith("--") else name
