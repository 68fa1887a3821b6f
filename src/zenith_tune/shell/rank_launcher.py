"""The launcher in a command that starts its ranks, torchrun, deepspeed or accelerate, and that launcher's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from zenith_tune.errors import CommandError
from zenith_tune.shell.launcher_catalog import LAUNCHERS
from zenith_tune.shell.launchers import program_name
from zenith_tune.shell.lexer import Word
from zenith_tune.shell.options import Splice, apply_splices, canonical, splices_in_source
from zenith_tune.shell.target import Target, find_target

TORCHRUN, DEEPSPEED, ACCELERATE = "torchrun", "deepspeed", "accelerate"
_MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "deepspeed.launcher.runner": DEEPSPEED,
    "accelerate.commands.launch": ACCELERATE,
}
_PROGRAMS = {"torchrun": TORCHRUN, "deepspeed": DEEPSPEED, "accelerate-launch": ACCELERATE}


class _Span(NamedTuple):
    """Hold which launcher it is, and the word at which its own options begin."""

    kind: str
    first: int


class RankLauncher:
    """Read and set the options of the launcher, which stand in front of the script; the script's own are left alone.

    >>> launcher = RankLauncher.find("srun torchrun --nproc_per_node 8 train.py --master-port 1")
    >>> launcher.kind, launcher.option("--nproc-per-node"), launcher.option("--master-port")
    ('torchrun', '8', None)
    >>> launcher.with_options({"--master-port": "29511"})
    'srun torchrun --master-port 29511 --nproc_per_node 8 train.py --master-port 1'
    """

    def __init__(self, command: str, target: Target, span: _Span) -> None:
        self._command = command
        self._target = target
        self.kind = span.kind
        self._first = span.first
        self._words = target.words[span.first : target.first]
        self._flags = LAUNCHERS[span.kind].flags

    @classmethod
    def find(cls, command: str) -> RankLauncher | None:
        """Return the launcher of a command, or None where there is none that can be seen."""
        try:
            target = find_target(command)
        except CommandError:
            return None
        span = _span(target.words[: target.first])
        return None if span is None else cls(command, target, span)

    def option(self, *names: str) -> str | None:
        """Return the last value of an option under any of its names; one that is short is written -x."""
        found = [value for word, value, _ in self._options() if _name(word) in names]
        return found[-1] if found else None

    def with_options(self, options: Mapping[str, str], *, without: tuple[str, ...] = ()) -> str:
        """Return the command with these options of the launcher in place of what it says; `without` are taken out."""
        gone = {_option_name(name) for name in (*options, *without)}
        splices = [
            self._deletion(word)
            for word, _, follow in self._options()
            if _name(word) in gone
            for word in (word, *follow)
        ]
        added = "".join(f" {name} {value}" for name, value in options.items())
        at = self._target.words[self._first - 1].end
        splices = [*splices, Splice(at, at, added)]
        for layer in reversed(self._target.layers):
            moved = [Splice(start + layer.offset, end + layer.offset, text) for start, end, text in splices]
            splices = splices_in_source(layer.word, moved)
        return apply_splices(self._command, splices)

    def _options(self) -> list[tuple[Word, str, tuple[Word, ...]]]:
        """Return each option with its value, and the further word that holds it where there is one."""
        found = []
        for index, word in enumerate(self._words):
            if not word.value.startswith("-"):
                continue
            _, equals, value = word.value.partition("=")
            follow = self._words[index + 1 : index + 2]
            is_flag = _name(word).removeprefix("--") in self._flags
            takes = not equals and not is_flag and bool(follow) and not follow[0].value.startswith("-")
            found.append((word, value if equals else follow[0].value if takes else "", follow if takes else ()))
        return found

    def _deletion(self, word: Word) -> Splice:
        has_blank = self._target.text[word.start - 1 : word.start] in (" ", "\t")
        return Splice(word.start - has_blank, word.end, "")


def _span(words: tuple[Word, ...]) -> _Span | None:
    for index, word in enumerate(words):
        name = program_name(word) or ""
        if name in _PROGRAMS:
            return _Span(_PROGRAMS[name], index + 1)
        if name == "accelerate" and index + 1 < len(words) and words[index + 1].value == "launch":
            return _Span(ACCELERATE, index + 2)
        if index and words[index - 1].value == "-m" and word.value in _MODULES:
            return _Span(_MODULES[word.value], index + 1)
    return None


def _name(word: Word) -> str:
    return _option_name(word.value.partition("=")[0])


def _option_name(name: str) -> str:
    return canonical(name) if name.startswith("--") else name
