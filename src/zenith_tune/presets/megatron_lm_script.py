"""The run of a pretrain script that a command comes down to, through the shell scripts and variables before it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zenith_tune.command_line.launchers import ShellText, locate, program_name
from zenith_tune.command_line.shell_target import SimpleCommand, is_assignment, simple_commands
from zenith_tune.command_line.shell_tokens import Word
from zenith_tune.command_line.shell_vocabulary import BUILTINS, CONTROL_FLOW, TRIVIAL
from zenith_tune.command_line.shell_words import lex
from zenith_tune.errors import CommandError
from zenith_tune.presets.megatron_lm_condition import MAYBE, RUN, SKIP, Branch, Truth, holds, inverse
from zenith_tune.presets.megatron_lm_shell import REST, ShellVariables
from zenith_tune.regular_file import open_regular

MAX_DEPTH = 8
MAX_BYTES = 1 << 20
DECLARES = ("export", "declare", "local", "readonly", "typeset")
PROGRAM = re.compile(r"(?:^|/)pretrain_(\w+)\.py$", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class PretrainRun:
    """Hold one run of a pretrain script, its variables put in."""

    launcher: tuple[str, ...]
    """The words in front of the script, such as torchrun and its options."""
    program: str
    arguments: tuple[str, ...]
    added_at: int | None = None
    """Where among the arguments those arrive that are added to the command; None where they do not."""
    script: str = ""
    """The shell script that runs it; empty where the command itself does."""
    variables: Mapping[str, str]
    """What is set in front of it."""
    extended: tuple[str, ...] = ()
    """Lists that a condition which cannot be followed may have made longer."""


def find_pretrain_run(command: str, environment: Mapping[str, str] | None = None) -> PretrainRun | None:
    """Return the first run of a pretrain script that a command leads to, or None.

    >>> run = find_pretrain_run("TP=2; torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size $TP")
    >>> run.launcher[-1], run.arguments
    ('8', ('--tensor-model-parallel-size', '2'))
    """
    walk = _Walk(ShellVariables(environment=os.environ if environment is None else environment))
    try:
        walk.read(command)
    except CommandError:
        return None
    return next(iter(walk.found), None)


class _Walk:
    """Go through a shell text from its beginning to its end."""

    def __init__(self, variables: ShellVariables, *, script: str = "", folder: Path | None = None, depth: int = 0):
        self.variables = variables
        self.found: list[PretrainRun] = []
        self._script, self._depth = script, depth
        self._folder = Path() if folder is None and not depth else folder
        self._branches: list[Branch] = []
        self._last: Truth = True

    def read(self, text: str) -> None:
        for command in simple_commands(lex(_without_comments(text))):
            words = self._after_flow([*command.assignments, *command.words], command)
            if words:
                self._step(words, command)

    def _after_flow(self, words: list[Word], command: SimpleCommand) -> list[Word]:
        """Return what follows the words of control flow, after which other branches are open."""
        while words and words[0].value in CONTROL_FLOW and words[0].end - words[0].start == len(words[0].value):
            self._last = True
            keyword, words = words[0].value, words[1:]
            if keyword == "if":
                self._branches.append(Branch.of_if(self._state))
            elif keyword in ("for", "while", "until", "case", "select"):
                self._branches.append(Branch.of_loop(self._state))
                return []
            elif keyword in ("fi", "done", "esac") and self._branches:
                self._branches.pop()
            elif self._branches and not self._branches[-1].keeps_state:
                branch = self._branches[-1]
                steps = {"then": branch.begin_body, "elif": branch.begin_condition, "else": branch.begin_else}
                steps.get(keyword, lambda: None)()
        return words

    @property
    def _state(self) -> str:
        return self._branches[-1].state if self._branches else RUN

    def _step(self, words: list[Word], command: SimpleCommand) -> None:
        if self._branches and self._branches[-1].in_condition:
            self._branches[-1].test(self._truth(words, command), command.opener)
            return
        state = self._state
        if command.opener in ("&&", "||"):
            wanted = self._last if command.opener == "&&" else inverse(self._last)
            state = {True: state, None: SKIP if state == SKIP else MAYBE, False: SKIP}[wanted]
        if state != SKIP:
            self._run(words, is_certain=state == RUN)
            self._last = self._truth(words, command)

    def _truth(self, words: list[Word], command: SimpleCommand) -> Truth:
        negated = "!" in command.keywords
        if words[0].value == "!":
            negated, words = not negated, words[1:]
        if all(is_assignment(word) for word in words):
            return True
        truth = holds([value for word in words for value in self.variables.expand(word) or [""]])
        return inverse(truth) if negated else truth

    def _run(self, words: list[Word], *, is_certain: bool) -> None:
        num_set = next((i for i, word in enumerate(words) if not is_assignment(word)), len(words))
        settings, words = words[:num_set], words[num_set:]
        if not words or words[0].value in DECLARES:
            for word in (*settings, *words):
                self.variables.assign(word, is_certain=is_certain)
            return
        name = program_name(words[0])
        if name in ("shift", "unset", "read", "source", ".", "cd", "eval"):
            self._builtin(name, [value for word in words[1:] for value in self.variables.expand(word)], is_certain)
        elif name not in TRIVIAL and name not in BUILTINS - {"exec", "command"}:
            self._start(words, settings)

    def _builtin(self, name: str, arguments: list[str], is_certain: bool) -> None:
        variables = self.variables
        if name == "shift" and is_certain:
            count = int(arguments[0]) if arguments and arguments[0].isdigit() else 1
            variables.arguments = variables.arguments[count:]
        elif name == "unset" and is_certain:
            for each in arguments:
                variables.forget(each)
        elif name == "read":
            variables.unsure.update(arguments)
        elif name == "cd":
            self._folder = self._place(arguments[0]) if arguments else None
        elif name == "eval":
            self._nested(variables, self._script).read(" ".join(arguments))
        elif name in ("source", ".") and arguments:
            text = self._text(arguments[0])
            variables.is_open |= text is None
            self._nested(variables, self._script).read(text or "")

    def _start(self, words: list[Word], settings: Sequence[Word]) -> None:
        """Note a pretrain script that is run, or go through a shell script."""
        expanded = [value for word in words for value in self.variables.expand(word)]
        child = self.variables.child(())
        for word in settings:
            child.assign(word)
        at = next((i for i, value in enumerate(expanded) if PROGRAM.search(value)), None)
        if at is not None:
            self.found.append(self._pretrain(expanded, at, child))
            return
        try:
            place = locate(words)
        except CommandError:
            return
        if isinstance(place, ShellText):
            child.arguments, child.passes_rest = self.variables.arguments, self.variables.passes_rest
            self._nested(child, self._script).read(self.variables.joined(words[place.word])[place.offset :])
        elif place.by_shell and (file := "".join(self.variables.expand(words[place.first - 1]))):
            given = [value for word in words[place.first :] for value in self.variables.expand(word)]
            inner = child.child([*given, *([] if self._script else [REST])])
            self._nested(inner, self._script or file).read(self._text(file) or "")

    def _nested(self, variables: ShellVariables, script: str) -> _Walk:
        if self._depth >= MAX_DEPTH:
            raise CommandError(f"shell scripts must not call one another more than {MAX_DEPTH} deep")
        inner = _Walk(variables, script=script, folder=self._folder, depth=self._depth + 1)
        inner.found = self.found
        return inner

    def _pretrain(self, words: list[str], at: int, variables: ShellVariables) -> PretrainRun:
        arguments = words[at + 1 :]
        return PretrainRun(
            launcher=tuple(words[:at]),
            program=words[at],
            arguments=tuple(word for word in arguments if word != REST),
            added_at=arguments.index(REST) if REST in arguments else None,
            script=self._script,
            variables={name: value[0] for name, value in variables.values.items() if value},
            extended=tuple(sorted(self.variables.used)),
        )

    def _place(self, name: str) -> Path | None:
        if "$" in name or "`" in name or "{" in name:
            return None
        path = Path(name).expanduser()
        return path if path.is_absolute() else self._folder / path if self._folder is not None else None

    def _text(self, name: str) -> str | None:
        try:
            path = self._place(name)
            if path is None:
                return None
            with open_regular(Path(os.path.realpath(path))) as file:
                return file.read(MAX_BYTES).decode(errors="replace")
        except (OSError, ValueError, RuntimeError):
            return None


def _without_comments(text: str) -> str:
    """Return a script without its comments, in which an apostrophe would open a quote inside the brackets of a list."""
    return "\n".join(_without_comment(line) for line in text.split("\n"))


def _without_comment(line: str) -> str:
    for match in re.finditer(r"(?:^|(?<=\s))#", line):
        before = line[: match.start()]
        if before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
            return before
    return line
