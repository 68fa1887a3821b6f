"""An evaluator for any program: a regular expression with one group finds the numbers."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.iterations import read_number
from zenith_tune.evaluators.regex_search import SearchError, search_apart
from zenith_tune.registry import EvaluatorRegistry
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial_log import clean_line, lines_of

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
        _check(pattern)

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
            return search_apart(self.pattern, lines_of(stdout), self.selector)
        except SearchError as error:
            raise ValueError(f"pattern {self.pattern!r} {error}") from None

    def _number(self, text: str) -> float:
        number = read_number(text)
        if number is None:
            raise ValueError(f"pattern {self.pattern!r} found {clean_line(text, 80)!r}, which is no number")
        if not math.isfinite(number):
            raise ValueError(f"pattern {self.pattern!r} found {number}, which is no finite number")
        return number


def _check(pattern: str) -> None:
    """Say in one line what is wrong with a user's pattern, if anything is."""
    try:
        regex = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"a pattern must be a valid regular expression, but {pattern!r} is not: {error}") from error
    if regex.groups != 1:
        hint = "put ( ) around the number" if regex.groups == 0 else "write (?: ) for the others"
        raise UsageError(f"a pattern must have exactly one group, but {pattern!r} has {regex.groups}", hint=hint)
