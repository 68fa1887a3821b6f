"""The runs of a program that a command leads to, through the shell scripts and variables before it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from zenith_tune.errors import CommandError
from zenith_tune.shell.launchers import EVALUATED, Arguments, ShellText, locate, program_name
from zenith_tune.shell.lexer import BUILTINS, CONTROL_FLOW, TRIVIAL, Word, lex
from zenith_tune.shell.parsed_command import ParsedCommand
from zenith_tune.shell.scripts.interpreter import MAX_BYTES, REST, ShellVariables
from zenith_tune.shell.scripts.structure import (
    MAYBE,
    RUN,
    SKIP,
    Branch,
    Truth,
    arithmetic_names,
    function_at,
    holds,
    inverse,
    names_set,
    set_by_env,
)
from zenith_tune.shell.target import SimpleCommand, is_assignment, simple_commands
from zenith_tune.study.files import open_regular
from zenith_tune.units import whole

IsProgram = Callable[[Sequence[str], int], bool]
"""A test whether the word at a place among others is the program that is looked for."""


class Source(NamedTuple):
    """A command as it is written, and the variables that it finds."""

    settings: tuple[Word, ...] = ()
    words: tuple[Word, ...] = ()
    variables: ShellVariables = ShellVariables(environment={})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """One run of the program, with its variables filled in."""

    launcher: tuple[str, ...]
    """The words in front of the program, such as torchrun and its options."""
    program: str
    arguments: tuple[str, ...]
    added_at: int | None = None
    """The place among the arguments at which those added to the command arrive; None where they do not."""
    script: str = ""
    """The shell script that runs it; empty where the command itself does."""
    variables: Mapping[str, str]
    """Variables that are set by then, by name."""
    folder: Path | None = None
    """The folder in which it runs, relative to this one; None where only a shell knows."""
    extended: tuple[str, ...] = ()
    """Lists that a condition which cannot be followed may have made longer."""
    doubtful: tuple[str, ...] = ()
    """Options that such a condition decides on."""
    is_guarded: bool = False
    """Whether a condition that cannot be followed decides if it runs."""
    source: Source = field(default_factory=Source)


MAX_DEPTH = 8
LOOPS = ("for", "select", "while", "until")
PIPES = ("|", "|&")
SETTERS = ("read", "let", "printf", "mapfile", "readarray", "getopts")
BUILTIN_STEPS = ("shift", "set", "unset", "source", ".", "cd", "eval", "exit", "return", *SETTERS)
DECLARES = ("export", "declare", "local", "readonly", "typeset")


class _Group(NamedTuple):
    """The state to restore behind a bracket; in arithmetic nothing changes."""

    variables: ShellVariables
    folder: Path | None
    is_over: bool
    is_arithmetic: bool = False


class ScriptReading(NamedTuple):
    """The program runs that a command leads to."""

    runs: Sequence[ProgramRun]
    unread: str
    """The reason why part of it was not read; empty where all was."""


def find_runs(
    command: str, is_program: IsProgram, environment: Mapping[str, str] | None = None, *, is_open: bool = False
) -> ScriptReading:
    """Follow a command and its scripts as far as they can be read; what was found by then stays found.

    With `is_open` a variable that is set nowhere may be set all the same, and stays as it is written.
    """
    environment = os.environ if environment is None else environment
    walk = _Walk(ShellVariables(environment=environment, is_open=is_open), is_program)
    budget = walk.variables.budget
    try:
        walk.read(command)
    except CommandError:
        pass
    except (RecursionError, MemoryError, OverflowError):
        budget.reason = budget.reason or "its quotes and brackets are nested too deep"
    return ScriptReading(walk.found, budget.reason)


class _Walk:
    """A reading of a shell text from its beginning to its end."""

    def __init__(
        self,
        variables: ShellVariables,
        is_program: IsProgram,
        *,
        script: str = "",
        folder: Path | None = None,
        depth: int = 0,
    ) -> None:
        self.variables = variables
        self.found: list[ProgramRun] = []
        self._is_program = is_program
        self.functions: dict[str, Sequence[SimpleCommand]] = {}
        self.locals: set[str] = set()
        self.exits = False
        self._script, self._depth = script, depth
        self._folder = Path() if folder is None and not depth else folder
        self._base, self._is_guarded = RUN, False
        self._branches: list[Branch] = []
        self._groups: list[_Group] = []
        self._last: Truth = True
        self._is_over = False

    def read(self, text: str) -> None:
        self.variables.budget.take_text(text)
        # The command itself has been read by others; a script of many pages is not worth keeping.
        is_command = not self._depth and text.strip()
        self.follow(ParsedCommand.of(text).commands if is_command else list(simple_commands(lex(text))))

    def follow(self, commands: Sequence[SimpleCommand]) -> None:
        at = 0
        while at < len(commands):
            self.variables.budget.take_command()
            if (function := function_at(commands, at)) is not None:
                if self._state != SKIP:
                    self.functions[function.name] = function.body
                at = function.after
                continue
            command, at = commands[at], at + 1
            words = self._after_flow([*command.assignments, *command.words])
            if self._groups and self._groups[-1].is_arithmetic:
                self.variables.unsure |= arithmetic_names(words) if self._state != SKIP else set()
            elif words and not (self._branches and self._branches[-1].in_pattern):
                self._step(words, command)
            self._close(command)

    def _after_flow(self, words: list[Word]) -> list[Word]:
        """Return what follows the words of control flow, after which other branches are open."""
        while words and words[0].value in CONTROL_FLOW and words[0].end - words[0].start == len(words[0].value):
            self._last = True
            keyword, words = words[0].value, words[1:]
            if keyword == "if":
                self._branches.append(Branch.of_if(self._state))
            elif keyword == "case":
                self._branches.append(Branch.of_loop(self._state, is_case=True))
                return []
            elif keyword in LOOPS:
                self._branches.append(Branch.of_loop(self._state))
                if keyword in ("for", "select"):
                    self.variables.unsure |= {word.value for word in words[:1]} if self._state != SKIP else set()
                    return []
            elif keyword in ("fi", "done", "esac") and self._branches:
                self._branches.pop()
            elif self._branches and not self._branches[-1].keeps_state:
                branch = self._branches[-1]
                steps = {"then": branch.begin_body, "elif": branch.begin_condition, "else": branch.begin_else}
                steps.get(keyword, lambda: None)()
        return words

    def _close(self, command: SimpleCommand) -> None:
        """Follow the operator behind a command: brackets of subshells and arithmetic, and the parts of a `case`."""
        branch = self._branches[-1] if self._branches else None
        if branch is not None and branch.in_pattern:
            branch.in_pattern = command.closer != ")"
        elif command.closer in (";;", ";&", ";;&") and branch is not None:
            branch.in_pattern = branch.is_case
        elif command.closer == "(":
            self._open_group(is_second=command.opener == "(" and not command.words and not command.assignments)
        elif command.closer == ")" and self._groups:
            self.variables, self._folder, self._is_over, _ = self._groups.pop()

    def _open_group(self, *, is_second: bool) -> None:
        if is_second and self._groups:  # (( is arithmetic, in which nothing is run
            first = self._groups.pop()._replace(is_arithmetic=True)
            self.variables = first.variables
            self._groups += [first, first]
        elif self._groups and self._groups[-1].is_arithmetic:
            self._groups.append(self._groups[-1])
        else:
            self._groups.append(_Group(self.variables, self._folder, self._is_over))
            self.variables = self.variables.copy()

    @property
    def _state(self) -> str:
        if self._is_over:
            return SKIP
        return self._branches[-1].state if self._branches else self._base

    def _step(self, words: list[Word], command: SimpleCommand) -> None:
        state = self._state
        if command.opener in ("&&", "||"):
            wanted = self._last if command.opener == "&&" else inverse(self._last)
            state = {True: state, None: SKIP if state == SKIP else MAYBE, False: SKIP}[wanted]
        outer = _Group(self.variables, self._folder, self._is_over)
        is_piped = command.opener in PIPES or command.closer in PIPES
        if is_piped:
            self.variables = self.variables.copy()
        if state != SKIP:
            # What stands behind && is meant to be reached; only what it sets is not relied on.
            self._run(words[words[0].value == "!" :], state, state if command.opener == "||" else self._state)
        truth = self._truth(words, command)
        self._last = truth if state != SKIP else self._last
        if self._branches and self._branches[-1].in_condition:
            self._branches[-1].test(truth, command.opener)
        if is_piped:  # each side of a pipe is a shell of its own
            self.variables, self._folder, self._is_over, _ = outer

    def _truth(self, words: list[Word], command: SimpleCommand) -> Truth:
        negated = "!" in command.keywords
        if words[0].value == "!":
            negated, words = not negated, words[1:]
        if all(is_assignment(word) for word in words):
            return True
        truth = holds([value for word in words for value in self.variables.expand(word) or [""]])
        return inverse(truth) if negated else truth

    def _run(self, words: list[Word], state: str, entered: str) -> None:
        num_set = next((i for i, word in enumerate(words) if not is_assignment(word)), len(words))
        settings, words = words[:num_set], words[num_set:]
        if not words or words[0].value in DECLARES:
            declared = [*settings, *words]
            options = {letter for word in words if word.value.startswith("-") for letter in word.value}
            for word in declared:
                if declared[0].value == "local":
                    self.locals.add(word.value.partition("=")[0].rstrip("+"))
                # An integer's value, or a reference's, is not what is written.
                self.variables.assign(word, is_certain=state == RUN and not {"i", "n"} & options)
            return
        name = program_name(words[0])
        if name in self.functions:
            self._call(self.functions[name], words, settings, entered)
        elif name in BUILTIN_STEPS:
            self._builtin(name, self._expanded(words[1:]), state, entered)
        elif name not in TRIVIAL and name not in BUILTINS - {"exec", "command"}:
            self._start(words, settings, entered)

    def _expanded(self, words: Sequence[Word]) -> list[str]:
        return [value for word in words for value in self.variables.expand(word)]

    def _call(self, body: Sequence[SimpleCommand], words: list[Word], settings: Sequence[Word], state: str) -> None:
        """Follow a function with the arguments of its call; what is local to it ends with it."""
        variables, outside = self.variables, self.variables.copy()
        given = self._expanded(words[1:])
        inner = self._nested(variables, self._script, state)
        for word in settings:
            variables.assign(word)
            inner.locals.add(word.value.partition("=")[0].rstrip("+"))
        variables.give(given)
        inner.follow(body)
        variables.arguments, variables.passes_rest = outside.arguments, outside.passes_rest
        variables.has_lost_arguments = outside.has_lost_arguments
        for name in inner.locals:
            variables.restore(name, outside)
        self._end(inner)

    def _end(self, inner: _Walk) -> None:
        """Continue behind what ran in this very shell, unless it has left it."""
        self.exits |= inner.exits
        self._is_over |= inner.exits

    def _builtin(self, name: str, arguments: list[str], state: str, entered: str) -> None:
        variables, is_certain = self.variables, state == RUN
        if name in ("exit", "return"):
            self._is_over |= is_certain
            self.exits |= is_certain and name == "exit" and not self._groups
        elif name == "shift":
            variables.shift(whole(arguments[0] if arguments else "1") if is_certain else None)
        elif name == "set" and "--" in arguments and is_certain:
            variables.give(arguments[arguments.index("--") + 1 :])
        elif name == "set" and "--" in arguments:
            variables.lose_arguments()
        elif name == "unset" and is_certain:
            for each in arguments:
                variables.forget(each)
        elif name in SETTERS or name == "unset":
            variables.unsure |= names_set(name, arguments)
        elif name == "cd":
            self._folder = self._place(arguments[0]) if arguments else None
        elif name == "eval":
            self._here(" ".join(arguments), entered)
        elif name in ("source", ".") and arguments:
            text = self._text(arguments[0])
            variables.is_open |= text is None
            self._here(text or "", entered)

    def _here(self, text: str, state: str) -> None:
        inner = self._nested(self.variables, self._script, state)
        inner.read(text)
        self._end(inner)

    def _start(self, words: list[Word], settings: Sequence[Word], state: str) -> None:
        """Note a run of the program, or follow a shell script."""
        expanded = self._expanded(words)
        child = self.variables.child(())
        for word in (*settings, *set_by_env(words)):
            child.assign(word)
        place: Arguments | ShellText | None = None
        with suppress(CommandError):
            place = locate(words)
        if isinstance(place, ShellText):
            child.arguments, child.passes_rest = self.variables.arguments, self.variables.passes_rest
            if place.word > 1 and EVALUATED in words[place.word - 2].value:
                child.arguments, child.name = expanded[place.word :], expanded[place.word - 1]
                place = ShellText(place.word - 2)
            text = self.variables.joined(words[place.word])[place.offset :]
            self._elsewhere(child, self._script, state).read(text)
            return
        at = next((i for i in range(len(expanded)) if self._is_program(expanded, i)), None)
        if at is not None:
            source = Source(tuple(settings), tuple(words), self.variables.copy())
            self.found.append(self._noted(expanded, at, child, source, is_guarded=self._is_guarded or state != RUN))
        elif place is not None and place.by_shell and (file := "".join(self.variables.expand(words[place.first - 1]))):
            given = self._expanded(words[place.first :])
            child = child.child([*given, *([] if self._script else [REST])])
            child.name = file
            self._elsewhere(child, self._script or file, state).read(self._text(file) or "")

    def _nested(self, variables: ShellVariables, script: str, state: str) -> _Walk:
        """Return a walk through what runs in this very shell."""
        if self._depth >= MAX_DEPTH:
            raise CommandError(f"shell scripts must not call one another more than {MAX_DEPTH} deep")
        inner = _Walk(variables, self._is_program, script=script, folder=self._folder, depth=self._depth + 1)
        inner.found, inner.functions, inner._base = self.found, self.functions, state
        inner._is_guarded = self._is_guarded
        return inner

    def _elsewhere(self, variables: ShellVariables, script: str, state: str) -> _Walk:
        """Return a walk through what runs in a shell of its own, which knows no functions of this one."""
        inner = self._nested(variables, script, state)
        inner.functions, inner._base, inner._is_guarded = {}, RUN, self._is_guarded or state != RUN
        return inner

    def _noted(
        self, words: list[str], at: int, variables: ShellVariables, source: Source, *, is_guarded: bool
    ) -> ProgramRun:
        arguments, used = words[at + 1 :], sorted(self.variables.used)
        return ProgramRun(
            launcher=tuple(words[:at]),
            program=words[at],
            arguments=tuple(word for word in arguments if word != REST),
            added_at=arguments.index(REST) if REST in arguments else None,
            script=self._script,
            variables={name: value[0] for name, value in variables.values.items() if value},
            folder=self._folder,
            extended=tuple(name for name in used if name in self.variables.extended),
            doubtful=tuple(option for name in used for option in self.variables.doubtful.get(name, ())),
            is_guarded=is_guarded,
            source=source,
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
                text = file.read(MAX_BYTES + 1).decode(errors="replace")
        except (OSError, ValueError, RuntimeError):
            return None
        if len(text) > MAX_BYTES:
            self.variables.budget.refusal(f"{path.name} is longer than {MAX_BYTES >> 10} KiB")
            return None
        return text
