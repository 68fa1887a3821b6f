"""Which branch of a shell script's `if` is taken, as far as its text tells: yes, no, or None for unknown."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

RUN, MAYBE, SKIP = "run", "maybe", "skip"
"""What becomes of a command: it runs, may run, or does not."""
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
    """Tell whether a test holds, its variables put in.

    >>> holds(["[", "fp8", "=", "fp8", "]"]), holds(["[[", "-z", "", "]]"]), holds(["test", "-f", "train.sh"])
    (True, True, None)
    """
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
    """Follow one `if`, or the body of a loop or `case`, which may run or not."""

    outer: str
    state: str
    keeps_state: bool = True
    """Whether this is no `if`."""
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
    def of_loop(cls, outer: str) -> Branch:
        """Begin a body whose condition is not followed."""
        return cls(outer, SKIP if outer == SKIP else MAYBE)

    @classmethod
    def of_case(cls, outer: str) -> Branch:
        """Begin a `case`, whose parts may run or not."""
        return cls(outer, SKIP if outer == SKIP else MAYBE, is_case=True, in_pattern=True)

    def begin_condition(self) -> None:
        """Go on to an `elif`."""
        self.in_condition, self.truth = True, None
        self.state = self._guarded(inverse(self.taken))

    def test(self, truth: Truth, joint: str) -> None:
        """Take one more test of the condition, behind `&&`, `||` or nothing."""
        joins = {"&&": both, "||": either}
        self.truth = joins[joint](self.truth, truth) if joint in joins else truth

    def begin_body(self) -> None:
        """Go on to what `then` guards."""
        self.in_condition = False
        self.state = self._guarded(both(self.truth, inverse(self.taken)))
        self.taken = either(self.taken, self.truth)

    def begin_else(self) -> None:
        """Go on to what is left."""
        self.state = self._guarded(inverse(self.taken))

    def _guarded(self, truth: Truth) -> str:
        if self.outer == SKIP or truth is False:
            return SKIP
        return self.outer if truth else MAYBE
