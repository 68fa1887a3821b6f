"""An evaluator for any program: a regular expression with one group finds the numbers."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from zenith_tune.direction import Direction
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.iterations import read_number
from zenith_tune.registry import EvaluatorRegistry
from zenith_tune.trial_log import clean_line, lines_of

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
    may hold several. Carriage returns end a line too. A line above 64 KiB is searched in its first and last 32 KiB.

    >>> RegexEvaluator(r"loss=(\\S+)", selector="min").evaluate("loss=0.5 loss=0.25\\nloss=0.75", {})
    0.25
    """

    def __init__(self, pattern: str, selector: str = "last", direction: Direction = Direction.MINIMIZE) -> None:
        if selector not in SELECTORS:
            raise UnknownNameError("selector", selector, SELECTORS)
        self.pattern = pattern
        self.selector = selector
        self.direction = Direction(direction)
        self._regex = _compile(pattern)

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
        found = self._found(stdout)
        if self.selector == "first":
            return list(itertools.islice(found, 1))
        return deque(found, maxlen=1) if self.selector == "last" else list(found)

    def _found(self, stdout: str) -> Iterator[str]:
        matches = (match for line in lines_of(stdout) for match in self._regex.finditer(line))
        for match in matches:
            # An optional group that took no part in a match has found nothing.
            if match[1] is not None:
                yield match[1]

    def _number(self, text: str) -> float:
        number = read_number(text)
        if number is None:
            raise ValueError(f"pattern {self.pattern!r} found {clean_line(text, 80)!r}, which is no number")
        if not math.isfinite(number):
            raise ValueError(f"pattern {self.pattern!r} found {number}, which is no finite number")
        return number


def _compile(pattern: str) -> re.Pattern[str]:
    """Compile a user's pattern, or say in one line what is wrong with it."""
    try:
        regex = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"a pattern must be a valid regular expression, but {pattern!r} is not: {error}") from error
    if regex.groups != 1:
        cure = "put ( ) around the number" if regex.groups == 0 else "write (?: ) for the others"
        raise UsageError(f"a pattern must have exactly one group, but {pattern!r} has {regex.groups}: {cure}")
    return regex
