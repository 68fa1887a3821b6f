"""The structure of a shell script beyond its words: functions, names that are set, and conditions."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zenith_tune.shell.launchers import ASSIGNMENT, program_name
from zenith_tune.shell.lexer import CONTROL_FLOW, KEYWORDS, Word
from zenith_tune.shell.target import SimpleCommand

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_FUNCTION = re.compile(r"[A-Za-z_][\w.:-]*", re.ASCII)
_SETS = re.compile(r"(?<![=!<>])=(?!=)|\+\+|--")


class Function(NamedTuple):
    """A function definition, and where the script continues behind it."""

    name: str
    body: Sequence[SimpleCommand]
    after: int


def function_at(commands: Sequence[SimpleCommand], at: int) -> Function | None:
    """Return the function whose definition begins at a command: its body is run where it is called, not here."""
    words = [word.value for word in commands[at].words]
    is_named = words[:1] == ["function"] and len(words) > 1
    name = words[1] if is_named else words[0] if len(words) == 1 else ""
    if not _FUNCTION.fullmatch(name) or name in CONTROL_FLOW or commands[at].assignments:
        return None
    after = commands[at + 1 : at + 3]
    if commands[at].closer == "(" and len(after) == 2 and after[0].closer == ")" and not after[0].words:
        return _with_body(name, commands, at + 2)
    if not is_named:
        return None
    if words[2:3] == ["{"]:
        first = commands[at]._replace(words=commands[at].words[3:], keywords=("{",))
        found = _with_body(name, commands, at)
        return None if found is None else found._replace(body=[first, *found.body[1:]])
    return _with_body(name, commands, at + 1) if len(words) == 2 else None


def _with_body(name: str, commands: Sequence[SimpleCommand], start: int) -> Function | None:
    """Return the function whose body stands in the braces, or the brackets, that open at or behind `start`."""
    while start < len(commands) and not _depth(commands[start]) and commands[start].closer == "\n":
        if commands[start].words:
            return None
        start += 1
    if start >= len(commands):
        return None
    in_braces = _depth(commands[start]) > 0
    if not in_braces and commands[start].closer != "(":
        return None
    depth = 0
    for index in range(start, len(commands)):
        closer = commands[index].closer
        depth += _depth(commands[index]) if in_braces else (closer == "(") - (closer == ")")
        if depth <= 0:
            return Function(name, commands[start + (not in_braces) : index + (not in_braces)], index + 1)
    return Function(name, commands[start:], len(commands))


def _depth(command: SimpleCommand) -> int:
    """Return how many braces a command opens, less those that it closes."""
    depth = command.keywords.count("{") - command.keywords.count("}")
    is_named = command.words[:1] and command.words[0].value == "function"
    for word in command.words[2 if is_named else 0 :]:
        if word.value not in CONTROL_FLOW and word.value not in KEYWORDS:
            break
        depth += (word.value == "{") - (word.value == "}")
    return depth


def arithmetic_names(words: Sequence[Word]) -> set[str]:
    """Return the names that an arithmetic command such as `((TP *= 2))` or `let TP=4` sets."""
    text = " ".join(word.value for word in words)
    return set(NAME.findall(text)) if _SETS.search(text) else set()


def names_set(program: str, arguments: Sequence[str]) -> set[str]:
    """Return the names that a builtin sets to what only a shell knows."""
    if program == "printf":
        return {arguments[i + 1] for i, word in enumerate(arguments[:-1]) if word == "-v"}
    if program == "let":
        return {match[0] for word in arguments if (match := NAME.match(word))}
    return {word for word in arguments if NAME.fullmatch(word)}


def set_by_env(words: Sequence[Word]) -> list[Word]:
    """Return the assignments behind an `env` that starts the program, which takes them in quotes as well."""
    at = next((i for i, word in enumerate(words) if program_name(word) == "env"), len(words)) + 1
    while at < len(words) and words[at].value.startswith("-"):
        at += 1 + (words[at].value in ("-u", "--unset", "-C", "--chdir"))
    end = next((i for i in range(at, len(words)) if not ASSIGNMENT.match(words[i].value)), len(words))
    return list(words[at:end])


RUN, MAYBE, SKIP = "run", "maybe", "skip"
"""Whether a command runs, may run, or does not."""
Truth = bool | None

_UNKNOWN = re.compile(r"[$`]")
_WHOLE = re.compile(r"-?[0-9]{1,18}")
_PATTERN = re.compile(r"[*?\[]")
_COMPARES: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-ge": operator.ge,
    "-lt": operator.lt,
    "-le": operator.le,
}


def either(left: Truth, right: Truth) -> Truth:
    """Return left or right, with unknown as a third truth."""
    if left is True or right is True:
        return True
    return None if left is None or right is None else False


def both(left: Truth, right: Truth) -> Truth:
    """Return left and right."""
    return inverse(either(inverse(left), inverse(right)))


def inverse(truth: Truth) -> Truth:
    """Return not truth."""
    return None if truth is None else not truth


def holds(words: Sequence[str]) -> Truth:
    """Tell whether a test holds, its variables put in."""
    if words and words[0] in ("true", ":", "false"):
        return words[0] != "false"
    if not words or words[0] not in ("[", "[[", "test"):
        return None
    inner = list(words[1:] if words[0] == "test" else words[1:-1])
    if inner[:1] == ["!"]:
        return inverse(_simple(inner[1:]))
    return _simple(inner)


def _simple(words: Sequence[str]) -> Truth:
    if any(_UNKNOWN.search(word) for word in words):
        return None
    if len(words) == 1 or (len(words) == 2 and words[0] == "-n"):
        return words[-1] != ""
    if len(words) == 2 and words[0] == "-z":
        return words[1] == ""
    if len(words) == 3 and words[1] in ("=", "==", "!=") and not _PATTERN.search(words[2]):
        return (words[0] == words[2]) is (words[1] != "!=")
    if len(words) == 3 and words[1] in _COMPARES and _WHOLE.fullmatch(words[0]) and _WHOLE.fullmatch(words[2]):
        return _COMPARES[words[1]](int(words[0]), int(words[2]))
    return None


@dataclass(slots=True)
class Branch:
    """An `if`, or the body of a loop or `case`, which may run or not."""

    outer: str
    state: str
    keeps_state: bool = True
    """Whether this is a loop or a `case`."""
    in_condition: bool = False
    is_case: bool = False
    in_pattern: bool = False
    """Whether the words up to the next bracket say when a part of a `case` runs."""
    truth: Truth = None
    taken: Truth = False

    @classmethod
    def of_if(cls, outer: str) -> Branch:
        """Begin an `if`."""
        return cls(outer, outer, keeps_state=False, in_condition=True)

    @classmethod
    def of_loop(cls, outer: str, *, is_case: bool = False) -> Branch:
        """Begin a loop or a `case`, of which nothing may run."""
        return cls(outer, SKIP if outer == SKIP else MAYBE, is_case=is_case, in_pattern=is_case)

    def begin_condition(self) -> None:
        """Move to an `elif`."""
        self.in_condition, self.truth = True, None
        self.state = self._guarded(inverse(self.taken))

    def test(self, truth: Truth, joint: str) -> None:
        """Take one more test of the condition, behind `&&`, `||` or nothing."""
        joins = {"&&": both, "||": either}
        self.truth = joins[joint](self.truth, truth) if joint in joins else truth

    def begin_body(self) -> None:
        """Move to what `then` guards."""
        self.in_condition = False
        self.state = self._guarded(both(self.truth, inverse(self.taken)))
        self.taken = either(self.taken, self.truth)

    def begin_else(self) -> None:
        """Move to the `else`."""
        self.state = self._guarded(inverse(self.taken))

    def _guarded(self, truth: Truth) -> str:
        if self.outer == SKIP or truth is False:
            return SKIP
        return self.outer if truth else MAYBE
