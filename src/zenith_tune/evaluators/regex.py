"""An evaluator for any program: a regular expression with one group finds the numbers."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.iterations import read_number
from zenith_tune.registry import EvaluatorRegistry
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial_log import clean_line, lines_of

MOST_CPU_S = 10
"""Megabytes of log take a second or two; a pattern that needs more goes through every way to cut a line."""
_SYNTAX = re.compile(r"\\N\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?:\d+,?\d*|,\d*)\}|\{", re.DOTALL)
"""Escapes, sets, repeats, and braces that are none of these."""
_IN_SET = re.compile(r"\\.|\[", re.DOTALL)

SELECTORS: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda numbers: numbers[-1],
    "first": lambda numbers: numbers[0],
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
}


@EvaluatorRegistry.register("regex")
class RegexEvaluator(TuningEvaluator):
    """Find numbers with a pattern of exactly one group, and select one or summarise them.

    The pattern is searched line by line: `^` and `$` are the ends of a line, a match never spans two lines, and a line
    may hold several. Carriage returns end a line too. A line above 64 KiB is searched in its first and last 32 KiB. A
    search that takes more than ten seconds of work is given up.

    >>> RegexEvaluator(r"loss=(\\S+)", selector="min").evaluate("loss=0.5 loss=0.25\\nloss=0.75", {})
    0.25
    """

    def __init__(self, pattern: str, selector: str = "last", direction: Direction = Direction.MINIMIZE) -> None:
        if selector not in SELECTORS:
            raise UnknownNameError("selector", selector, SELECTORS)
        self.pattern = pattern
        self.selector = selector
        self.direction = Direction(direction)
        self._compiled = _compiled(pattern)

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        """Return the selected number, or raise ValueError where the pattern finds none."""
        numbers = [self._number(text) for text in self._chosen(stdout)]
        if not numbers:
            raise ValueError(f"pattern {self.pattern!r} is not in the log")
        return float(SELECTORS[self.selector](numbers))

    def describe(self) -> str:
        """Say what is measured."""
        return f"regex {self.pattern!r}, {self.selector}, {self.direction}"

    def _chosen(self, stdout: str) -> Sequence[str]:
        """Return what counts, unread: a NaN on the way does not matter to the last value."""
        try:
            found = self._found(lines_of(stdout))
            if self.selector == "first":
                return list(islice(found, 1))
            return list(deque(found, maxlen=1) if self.selector == "last" else found)
        except TimeoutError:
            hint = "write it without a repeat inside a repeat, as in (a+)+"
            raise ValueError(f"pattern {self.pattern!r} takes more than {MOST_CPU_S} s: {hint}") from None

    def _found(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield what the group finds, or raise TimeoutError: a busy machine must not cut a search short."""
        end_s = time.thread_time() + MOST_CPU_S
        for line in lines:
            for match in self._compiled.finditer(line, timeout=max(end_s - time.thread_time(), 1e-3)):
                if match[1] is not None:  # an optional group that took no part in a match has found nothing
                    yield match[1]

    def _number(self, text: str) -> float:
        number = read_number(text)
        if number is None:
            raise ValueError(f"pattern {self.pattern!r} found {clean_line(text, 80)!r}, which is no number")
        if not math.isfinite(number):
            raise ValueError(f"pattern {self.pattern!r} found {number}, which is no finite number")
        return number


def _compiled(pattern: str) -> Any:
    """Return a pattern that can be searched with a time limit, or say in one line what is wrong with it."""
    import regex  # here, because only this evaluator pays for its import

    try:
        num_groups = re.compile(pattern).groups
        compiled = regex.compile(_for_regex(pattern), regex.V0)
    except (re.error, regex.error, OverflowError, RecursionError) as error:
        raise UsageError(f"a pattern must be a valid regular expression, but {pattern!r} is not: {error}") from error
    if num_groups != 1:
        hint = "put ( ) around the number" if num_groups == 0 else "write (?: ) for the others"
        raise UsageError(f"a pattern must have exactly one group, but {pattern!r} has {num_groups}", hint=hint)
    return compiled


def _for_regex(pattern: str) -> str:
    """Return re's pattern for the regex package, to which some braces and brackets that re takes literally are syntax.

    >>> print(_for_regex(r"a{e} b{2} [[:x] (\\d+)"))
    a\\{e} b{2} [\\[:x] (\\d+)
    """

    def literal(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith("["):
            return "[" + _IN_SET.sub(lambda each: r"\[" if each[0] == "[" else each[0], text[1:])
        return r"\{" if text == "{" else text

    return _SYNTAX.sub(literal, pattern)
