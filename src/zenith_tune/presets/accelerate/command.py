"""The `accelerate launch` inside a command: which options it has, and the same command with a trial's own file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.errors import CommandError
from zenith_tune.presets.accelerate.settings import BACKEND_SWITCHES, ONLY_AS_OPTIONS, SECTION_OF, SWITCHES, TOP
from zenith_tune.shell.launchers import program_name
from zenith_tune.shell.lexer import Word, lex
from zenith_tune.shell.options import Splice, apply_splices, splices_in_source
from zenith_tune.shell.target import Target, find_target, simple_commands

PRESET = "preset accelerate"
FILE_NAME = "accelerate_config.yaml"
TRIAL_PATH = f"{{trial_folder}}/{FILE_NAME}"
"""Where a trial's own configuration lies; the tuner fills the folder in."""
HOOK_FOLDER = "hook"
HOOK_PATH = f"{{trial_folder}}/{HOOK_FOLDER}"
ACCUMULATION_VARIABLE = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
"""What Accelerator() takes the steps of accumulation from, before its own argument."""
_PATH = "PYTHONPATH="
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=", re.ASCII)
_MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOption:
    """Hold one option of the launcher, by the name that it has with underscores."""

    name: str
    value: str | None
    """None of a switch."""
    is_known: bool
    """Whether its value is written out, rather than for the shell to find."""
    words: tuple[Word, ...]

    @property
    def is_kept_in_file(self) -> bool:
        """Whether the file can say the same, so that the option has to go: it would win over the file."""
        in_file = self.name in SECTION_OF or self.name in TOP or self.name in BACKEND_SWITCHES
        return self.is_known and self.name not in ONLY_AS_OPTIONS and (in_file or self.name == "use_parallelism_config")


class Launch:
    """Find the launcher in a command, read its options and write the command anew.

    >>> launch = Launch("srun accelerate launch --zero_stage=2 train.py --lr 1")
    >>> [(option.name, option.value) for option in launch.options]
    [('zero_stage', '2')]
    >>> launch.written()
    'srun accelerate launch --config_file {trial_folder}/accelerate_config.yaml train.py --lr 1'
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._target = find_target(command)
        self._start, self._end = _launcher_span(self._target)
        self.options = tuple(_options(self._target.words[self._end : self._target.first - 1]))

    def values(self) -> dict[str, str | bool]:
        """Return what the options say, those aside whose value only the shell knows; the last of a name counts."""
        return {each.name: True if each.value is None else each.value for each in self.options if each.is_known}

    def unknown_names(self) -> set[str]:
        """Return the options whose value only the shell knows."""
        return {option.name for option in self.options if not option.is_known}

    def written(self, more_options: Mapping[str, str] | None = None, *, variables: Sequence[str] = ()) -> str:
        """Return the command with the trial's own file in place of what the file says; then `variables` and options."""
        gone = [
            word for each in self.options if each.is_kept_in_file or each.name == "config_file" for word in each.words
        ]
        again = [word for each in self.options if each.name in (more_options or {}) for word in each.words]
        names = {"config_file": TRIAL_PATH, **(more_options or {})}
        added = "".join(f" --{name} {value}" for name, value in names.items())
        at = self._target.words[self._end - 1].end
        splices = [self._deletion(word) for word in {*gone, *again}]
        return self._edited([*splices, Splice(at, at, added), *self._variables(variables)])

    def watched(self) -> str:
        """Return the command as it is, with the hook that notes what it runs as."""
        return self._edited(self._hook())

    def _hook(self) -> list[Splice]:
        """Put the hook in front of whatever PYTHONPATH the launcher gets; the shell fills in what is there already."""
        if HOOK_PATH in self._target.text:
            return []
        for word in self._assignments():
            if word.value.startswith(_PATH):
                at = word.start + len(_PATH)
                return [Splice(at, at, f"{HOOK_PATH}:")]
        at = self._target.words[self._start].start
        return [Splice(at, at, f"{self._env}{_PATH}{HOOK_PATH}${{PYTHONPATH:+:$PYTHONPATH}} ")]

    def _variables(self, wanted: Sequence[str]) -> list[Splice]:
        """Set variables for the launcher; one that the command sets already gets the new value."""
        splices, new = [], []
        for assignment in wanted:
            name = assignment.partition("=")[0] + "="
            own = next((word for word in self._assignments() if word.value.startswith(name)), None)
            if own is None:
                new.append(assignment)
            else:
                splices.append(Splice(own.start, own.end, assignment))
        at = self._target.words[self._start].start
        return [*splices, *([Splice(at, at, f"{self._env}{' '.join(new)} ")] if new else [])]

    @property
    def _env(self) -> str:
        """What goes before new variables of the launcher: nothing where an `env` with its own is there already."""
        words = [word.value for word in self._target.words[: self._start]]
        while words and _ASSIGNMENT.match(words[-1]):
            words.pop()
        return "" if words and words[-1].rpartition("/")[2] == "env" else "env "

    def _assignments(self) -> list[Word]:
        """Return the words that set a variable for the launcher: in front of its command, or behind `env`."""
        words = self._target.words
        command = next((each for each in simple_commands(lex(self._target.text)) if each.words == words), None)
        return [*(command.assignments if command else ()), *words[: self._start]]

    def _deletion(self, word: Word) -> Splice:
        has_blank = self._target.text[word.start - 1 : word.start] in (" ", "\t")
        return Splice(word.start - has_blank, word.end, "")

    def _edited(self, splices: list[Splice]) -> str:
        for layer in reversed(self._target.layers):
            moved = [Splice(start + layer.offset, end + layer.offset, text) for start, end, text in splices]
            splices = splices_in_source(layer.word, moved)
        return apply_splices(self._command, splices)


def starts_accelerate(command: str) -> bool:
    """Tell whether a command comes down to `accelerate launch`.

    >>> starts_accelerate("accelerate launch train.py"), starts_accelerate("accelerate config")
    (True, False)
    """
    try:
        Launch(command)
    except CommandError:
        return False
    return True


def _launcher_span(target: Target) -> tuple[int, int]:
    """Return where the launcher's own words begin and where its options do."""
    words = target.words[: target.first]
    for index, word in enumerate(words):
        name = program_name(word)
        if name == "accelerate-launch":
            return index, index + 1
        if name == "accelerate" and index + 1 < len(words) and words[index + 1].value == "launch":
            return index, index + 2
        if index >= 2 and words[index - 1].value == "-m" and word.value in _MODULES:
            return index - 2, index + 1 + (word.value == _MODULES[1])
    problem = f"{PRESET} reads its job from `accelerate launch`, but the command starts something else"
    raise CommandError(problem, hint="choose another --preset, or write `accelerate launch` where it can be seen")


def _options(words: Sequence[Word]) -> Iterator[LaunchOption]:
    at = 0
    while at < len(words):
        word = words[at]
        name, equals, value = word.value.partition("=")
        name = name.lstrip("-").replace("-", "_")
        at += 1
        if not word.value.startswith("-"):
            continue
        if equals or name in SWITCHES or at >= len(words) or words[at].value.startswith("--"):
            given = value if equals else None
            yield LaunchOption(name=name, value=given, is_known=word.is_static, words=(word,))
            continue
        follow = words[at]
        at += 1
        yield LaunchOption(name=name, value=follow.value, is_known=follow.is_static, words=(word, follow))
