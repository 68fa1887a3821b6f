"""The values of a shell script's variables, as far as its text shows them; nothing of it is run.

Only what training scripts are made of is understood: plain values, lists such as ARGS=( .. ), defaults as in ${TP:-8},
arguments and whole-number arithmetic. Whatever else a shell would work out stays as it is written.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from zenith_tune.errors import CommandError
from zenith_tune.shell.launchers import ASSIGNMENT
from zenith_tune.shell.lexer import Part, Quote, Word, lex
from zenith_tune.units import whole

MAX_BYTES = 1 << 18
MAX_COMMANDS = 20_000
MAX_VALUE = 1 << 16
"""A variable that grows beyond this many characters counts as unknown."""


@dataclass(slots=True)
class Budget:
    """The amount of text that one command, with all the scripts that it leads to, may still have read."""

    num_bytes: int = MAX_BYTES
    num_commands: int = MAX_COMMANDS
    reason: str = ""
    """The reason why something was not read; empty where all was."""

    def take_text(self, text: str) -> None:
        self.num_bytes -= len(text)
        if self.num_bytes < 0:
            raise self.refusal(f"its scripts come to more than {MAX_BYTES >> 10} KiB")
        self.take_command(20)  # what opening a script costs

    def take_command(self, count: int = 1) -> None:
        self.num_commands -= count
        if self.num_commands < 0:
            raise self.refusal(f"its scripts come to more than {MAX_COMMANDS} commands")

    def refusal(self, reason: str) -> CommandError:
        """Note why nothing more is read, and return the error that ends the reading."""
        self.reason = self.reason or reason
        return CommandError(reason)


REST = "\0rest\0"
"""A stand-in for what is added to the end of the command that starts a script, wherever the script passes it on."""

_SIMPLE = re.compile(r"\$(?P<name>[A-Za-z_]\w*|[0-9@*#])", re.ASCII)
_BRACED = re.compile(r"\$\{(?P<name>[A-Za-z_]\w*|[0-9]+|[@*#])(?:\[(?P<index>[^]]*)\])?(?P<rest>.*)\}", re.DOTALL)
_DEFAULT = re.compile(r"(:?)([-=+?])(.*)", re.DOTALL)
_SLICE = re.compile(r":\s*([0-9]+)")
_ARITHMETIC = re.compile(r"\$\(\((.*)\)\)", re.DOTALL)


def _divided(left: int, right: int) -> int:
    """Return the quotient as a shell rounds it: towards zero."""
    return left // right if (left < 0) == (right < 0) else -(-left // right)


_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divided,
    ast.Mod: lambda left, right: left - right * _divided(left, right),
}
_COMMANDS = re.compile(r"\$\(|`")
_OPTIONS = re.compile(r"(?<![\w-])--[A-Za-z][\w-]*", re.ASCII)


@dataclass(slots=True, kw_only=True)
class ShellVariables:
    """The values of variables, and the names that a condition which cannot be followed may have changed."""

    environment: Mapping[str, str]
    name: str = ""
    """The script's path, as it was started."""
    arguments: Sequence[str] = ()
    passes_rest: bool = False
    """Whether what is added to the command arrives behind the arguments."""
    has_lost_arguments: bool = False
    """Whether `shift` or `set` has left arguments that only a shell knows."""
    values: dict[str, list[str]] = field(default_factory=dict)
    unsure: set[str] = field(default_factory=set)
    """Names whose value depends on what cannot be followed."""
    extended: set[str] = field(default_factory=set)
    """Lists that may have more than is known."""
    doubtful: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Options in what a condition that cannot be followed may set, by the name that has them."""
    used: set[str] = field(default_factory=set)
    """Names of the last two that a word has asked for."""
    is_open: bool = False
    """Whether a file that cannot be read was sourced: what is not set here may be set there."""
    budget: Budget = field(default_factory=Budget)

    def child(self, arguments: Sequence[str]) -> Self:
        child = self.copy()
        child.give(arguments)
        return child

    def copy(self) -> Self:
        """Return the variables of a subshell; what it sets is lost with it."""
        return replace(
            self,
            values=dict(self.values),
            unsure=set(self.unsure),
            extended=set(self.extended),
            doubtful=dict(self.doubtful),
            used=set(self.used),
        )

    def give(self, arguments: Sequence[str]) -> None:
        """Set the arguments, as a function's call or `set --` does."""
        self.arguments = [word for word in arguments if word != REST]
        self.passes_rest, self.has_lost_arguments = REST in arguments, False

    def shift(self, count: int | None) -> None:
        """Take arguments away; where there are too few, or nobody knows how many, what is added may not arrive."""
        if count is not None and count <= len(self.arguments):
            self.arguments = self.arguments[count:]
        else:
            self.lose_arguments()

    def lose_arguments(self) -> None:
        """Note that only a shell knows the arguments: what is added to the command may not arrive."""
        self.arguments, self.passes_rest, self.has_lost_arguments = (), False, True

    def assign(self, word: Word, *, is_certain: bool = True) -> None:
        """Follow an assignment; one that may not happen makes its name unsure."""
        match = ASSIGNMENT.match(word.value)
        if match is None:
            return
        name, adds = match[0].rstrip("+=").partition("[")[0], match[0].endswith("+=")
        if not is_certain:
            is_known_list = name in self.values and name not in self.unsure
            (self.extended if adds and is_known_list else self.unsure).add(name)
            if options := _OPTIONS.findall(word.value):
                self.doubtful[name] = (*self.doubtful.get(name, ()), *options)
            return
        if "[" in match[0]:
            self.unsure.add(name)
            return
        last, old = word.parts[-1], self.values.get(name, [])
        is_list = last.dynamic and last.value.startswith("(")
        new = self.words(last.value[1:-1]) if is_list else [self.joined(word)[len(match[0]) :]]
        if adds:
            new = [*old, *new] if is_list else ["".join([*old[:1], *new])]
        if sum(map(len, new)) > MAX_VALUE:
            self.unsure.add(name)
            return
        self.values[name] = new
        if not adds:
            self.unsure.discard(name)
            self.doubtful.pop(name, None)

    def forget(self, name: str) -> None:
        """Take a name away, as `unset` does."""
        self.values[name] = []
        self.unsure.discard(name)

    def restore(self, name: str, outside: ShellVariables) -> None:
        """Set a name to what it is elsewhere, as at the end of a function that it is local to."""
        self.unsure.discard(name)
        self.unsure |= outside.unsure & {name}
        if name in outside.values:
            self.values[name] = outside.values[name]
        else:
            self.values.pop(name, None)

    def expand(self, word: Word) -> list[str]:
        return list(self._fields(word.parts))

    def joined(self, word: Word) -> str:
        """Return the one word that the shell makes of an assignment's value, or of what stands in quotes."""
        return " ".join(self._fields(word.parts, splits=False))

    def words(self, text: str) -> list[str]:
        return [value for token in lex(text) if isinstance(token, Word) for value in self.expand(token)]

    def _fields(self, parts: Sequence[Part], *, splits: bool = True) -> Iterator[str]:
        current: str | None = None
        is_bare = False
        for part in parts:
            pieces, breaks = self._pieces(part, splits=splits)
            is_bare |= breaks and not pieces
            for index, piece in enumerate(pieces):
                if index and breaks:
                    yield current or ""
                    current = None
                current = (current or "") + piece
        if current or (current is not None and not is_bare):  # "$@" without arguments is no word at all
            yield current

    def _pieces(self, part: Part, *, splits: bool) -> tuple[list[str], bool]:
        """Return what a part of a word stands for, and whether words end between its pieces."""
        values = self._values(part.value) if part.dynamic and part.value[0] in "$`" else [part.value]
        if values is None:
            return [part.value], False
        if part.dynamic and part.quote is Quote.NONE and splits:
            # What only a shell knows is one word here: it may come to any number of them.
            split = ([value] if _COMMANDS.search(value) else value.split() for value in values)
            return [piece for pieces in split for piece in pieces], True
        if not splits:
            return [" ".join(values)], False
        is_list = part.dynamic and re.search(r"[@*]", part.value) is not None
        return (values, True) if is_list else (["".join(values[:1])], False)

    def _values(self, source: str) -> list[str] | None:
        """Return what an expansion stands for, or None where only a shell could tell."""
        if match := _ARITHMETIC.fullmatch(source):
            plain = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", match[1])
            try:
                return [str(self._number(ast.parse(plain.strip(), mode="eval").body))]
            except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
                return None
        match = _SIMPLE.fullmatch(source) or _BRACED.fullmatch(source)
        if match is None:
            return None
        found = match.groupdict()
        values = self._lookup(found["name"], found.get("index"))
        return self._modified(found["name"], values, found.get("rest") or "")

    def _lookup(self, name: str, index: str | None) -> list[str] | None:
        if name in ("@", "*"):
            return [*self.arguments, *([REST] if self.passes_rest else [])]
        if name == "0":
            return [self.name] if self.name else None
        if name == "#" or name.isdecimal():
            place = whole(name) if name != "#" else 1
            if self.has_lost_arguments or not place:
                return None
            return [str(len(self.arguments))] if name == "#" else list(self.arguments[place - 1 : place])
        if name in self.extended or name in self.doubtful:
            self.used.add(name)
        if name in self.unsure:
            return None
        values = self.values.get(name)
        if values is None:
            known = [self.environment[name]] if name in self.environment else []
            values = None if self.is_open and not known else known
        if values is None or index in ("@", "*"):
            return values
        place = whole(index or "0")
        return None if place is None else values[place : place + 1]

    def _modified(self, name: str, values: list[str] | None, rest: str) -> list[str] | None:
        if values is None or not rest:
            return values
        if match := _SLICE.fullmatch(rest):
            start = whole(match[1])
            return None if start is None else values[max(start - (name in ("@", "*")), 0) :]
        match = _DEFAULT.fullmatch(rest)
        if match is None:
            return None
        colon, kind, text = match.groups()
        is_empty = not any(values) if colon else not values
        if kind == "+":
            return [] if is_empty else self._default(text)
        if is_empty and kind in "-=":
            values = self._default(text)
            if kind == "=" and values is not None:
                self.values[name] = values
        return values

    def _default(self, text: str) -> list[str] | None:
        try:
            return [" ".join(self.joined(token) for token in lex(text) if isinstance(token, Word))]
        except CommandError:
            return None

    def _number(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            value = "".join(self._lookup(node.id, None) or ["?"])
            number = whole(value.removeprefix("-"))
            if number is None:
                raise ValueError(f"{node.id} is no number")
            return -number if value.startswith("-") else number
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](self._number(node.left), self._number(node.right))
        raise ValueError(ast.dump(node))
