"""How a program that runs a Trainer inside is given the Trainer's arguments: by other names, in files and overrides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zenith_tune.presets.trainer.command import SUFFIXES, plain_argument, read_argument_file
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.launchers import program_name
from zenith_tune.study.parameters import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """A program's names for the arguments of its Trainer, and how a command gives them."""

    keys: Mapping[str, str]
    """Its key for each argument; one that is not here cannot be set."""
    read: Callable[[str], Mapping[str, Any]]
    """Return the keys that a command gives, those of its file included."""
    write: Callable[[str, Mapping[str, Value]], str]
    """Return a command with keys set, in place of those that it gives."""
    defaults: Mapping[str, Value] = field(default_factory=dict)
    """Where they are others than those of TrainingArguments."""
    inverted: frozenset[str] = frozenset()
    """Arguments that their key turns off."""
    words: Mapping[str, Mapping[Value, Value]] = field(default_factory=dict)
    """For an argument, what the program calls a value."""
    unseen: frozenset[str] = frozenset()
    """Arguments that do not reach its TrainingArguments, so that a run does not show them."""
    follows: Mapping[str, str] = field(default_factory=dict)
    """Arguments that the program works out itself where a key is given, and refuses besides it."""
    in_trials: Mapping[str, str] = field(default_factory=dict)
    """Keys that are set in trials, besides the fields that the hook sets."""
    num_processes: Callable[[str], int | None] = lambda command: None
    """Return how many ranks a command starts, where the program is its own launcher."""

    def arguments(self, command: str) -> dict[str, Any]:
        given = self.read(command)
        return {name: self._read_value(name, given[key]) for name, key in self.keys.items() if key in given}

    def written(self, command: str, values: Mapping[str, Value]) -> str:
        given = self.read(command)
        wanted = {name: value for name, value in values.items() if self.follows.get(name) not in given}
        keys = {
            self.keys[name]: not value if name in self.inverted else self.words.get(name, {}).get(value, value)
            for name, value in wanted.items()
        }
        # A program may know the Trainer's own name besides its key, and do what either says.
        both = {name: value for name, value in wanted.items() if name in given and name not in keys}
        return self.write(command, keys | both) if keys else command

    def _read_value(self, name: str, value: Any) -> Any:
        if name in self.inverted:
            return not value
        return next((ours for ours, theirs in self.words.get(name, {}).items() if theirs == value), value)


def file_values(command: str) -> Mapping[str, Any] | None:
    """Return what the first YAML or JSON among a program's arguments says; None without one."""
    name = next((word for word in program_words(command)[1] if word.endswith(SUFFIXES)), None)
    if name is None:
        return None
    found = read_argument_file(command, name)
    return found.values if found is not None else {}


def program_words(command: str) -> tuple[str, list[str]]:
    """Return the program or module that trains, without its folder, and the words behind it."""
    target = ParsedCommand.of(command).found_target
    if target is None or not target.first:
        return "", []
    return program_name(target.words[target.first - 1]) or "", [word.value for word in target.words[target.first :]]


def by_overrides(command: str) -> dict[str, Any]:
    """Return what a file says, with the KEY=VALUE behind it."""
    given = ParsedCommand.of(command).overrides
    return {**(file_values(command) or {}), **{key: plain_argument(text) for key, text in given.items()}}


def by_options(command: str, keys: Mapping[str, str]) -> dict[str, Any]:
    """Return what a file says, with the options behind it."""
    line = ParsedCommand.of(command)
    texts = {key: line.get(f"--{key}") for key in (*keys, *keys.values())}
    given = {key: plain_argument(text) for key, text in texts.items() if text is not None}
    return {**(file_values(command) or {}), **given}
