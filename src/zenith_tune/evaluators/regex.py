"""An evaluator for any program: a regular expression with one group finds the numbers."""

from __future__ import annotations

import itertools
import math
import re
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import EvaluatorRegistry, Measurement, Progress, TuningEvaluator
from zenith_tune.evaluators.steady import long_run, num_warm_up, summarise
from zenith_tune.evaluators.steps import read_number
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial_log import clean_line, lines_of

MOST_CPU_S = 10
"""CPU seconds of a search: megabytes take one or two, a pattern that needs more backtracks without end."""
_SYNTAX = re.compile(r"\\N\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?:[0-9]+,?[0-9]*|,[0-9]*)\}|\{", re.DOTALL)
"""Escapes, sets, repeats, and other braces."""
_IN_SET = re.compile(r"\\.|\[", re.DOTALL)

SELECTORS: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda numbers: numbers[-1],
    "first": lambda numbers: numbers[0],
    "min": min,
    "max": max,
    "mean": statistics.fmean,
    "median": statistics.median,
}
STEADY = "steady"
"""The selector of a number that each step prints: what a long run has, without the warm-up."""
KNOWN = (STEADY, *SELECTORS)
SETTLING = (STEADY, "last", "median")
"""Selectors whose value settles once the numbers are steady: a mean keeps its warm-up, extremes only grow."""
_QUALITY = re.compile(r"loss|acc|perplexity|ppl|error|score|reward|auc|f1|bleu|rouge|eval|valid", re.IGNORECASE)
"""Names of what improves with training; the value after some iterations is not the one at the end."""

_TIME = re.compile(
    r"time|duration|elapsed|latency|sec|speed|throughput|flop|(?:per_?|/)s(?![a-z])|s/it|it/s|\bms\b|_ms\b|\)s\b",
    re.IGNORECASE,
)
"""Names and units of times and speeds."""


_RATE = re.compile(
    r"(?<![a-z])per[ _]?s(?:ec|econd)?(?![a-z])|[a-z)]/s(?:ec|econd)?(?![a-z])|throughput|flops|(?<![a-z])mfu(?![a-z])"
    r"|speed(?!\\?\(s/)",
    re.IGNORECASE,
)
"""Names of rates, of which more is better."""


def usual_direction(name: str) -> Direction:
    """Return which way the number under a name or a pattern is better, where the user does not say it.

    >>> usual_direction(r"tokens/s: (\\S+)"), usual_direction(r"time \\(ms\\): (\\S+)")
    (<Direction.MAXIMIZE: 'maximize'>, <Direction.MINIMIZE: 'minimize'>)
    """
    return Direction.MAXIMIZE if _RATE.search(name) else Direction.MINIMIZE


def usual_selector(name: str) -> str:
    """Return what counts of the numbers under a name or a pattern, where the user does not say it.

    >>> usual_selector("tokens_per_s"), usual_selector("eval_loss")
    ('steady', 'last')
    """
    return "last" if _QUALITY.search(name) else STEADY


def steady_value(numbers: Sequence[float], direction: Direction) -> float:
    """Return what a long run has of a number that each step prints; totals and running means count by their last.

    >>> steady_value([9.0, 2.0, 2.1, 2.0, 6.0], Direction.MINIMIZE), steady_value([2.0, 4.1, 6.2], Direction.MINIMIZE)
    (2.05, 6.2)
    """
    if _is_running(numbers):
        return numbers[-1]
    if min(numbers) <= 0:  # no time and no rate, so that nothing tells which are warm-up
        return statistics.median(numbers)
    return long_run(numbers[_warm_up(numbers, direction) :], direction)


def _is_running(numbers: Sequence[float]) -> bool:
    """Tell whether numbers only rise or only fall, as a total or a running mean does and no number of single steps."""
    pairs = list(itertools.pairwise(numbers))
    return all(one < two for one, two in pairs) or all(one > two for one, two in pairs)


def _warm_up(numbers: Sequence[float], direction: Direction) -> int:
    return num_warm_up(numbers if direction is Direction.MINIMIZE else [1 / number for number in numbers])


@EvaluatorRegistry.register("regex")
class RegexEvaluator(TuningEvaluator):
    """Numbers that a pattern of exactly one group finds, of which one is selected or all are summarised.

    The pattern is searched line by line: `^` and `$` are the ends of a line, a match never spans two lines, and a line
    may hold several. Carriage returns end a line too. A line above 64 KiB is searched in its first and last 32 KiB. A
    search that takes more than ten seconds of work is given up.

    `selector` "steady" is for a number that each step prints, and the command line's default: the median without the
    warm-up, with stalls that recur. Trials end early by numbers that are printed once an iteration, where these, the
    last or their median counts; not where the pattern names a loss or another quality, which training improves.

    >>> RegexEvaluator(r"loss=(\\S+)", selector="min").evaluate("loss=0.5 loss=0.25\\nloss=0.75", {})
    0.25
    """

    def __init__(self, pattern: str, selector: str = "last", direction: Direction = Direction.MINIMIZE) -> None:
        if selector not in KNOWN:
            raise UnknownNameError("selector", selector, KNOWN)
        self.pattern = pattern
        self.selector = selector
        self.direction = Direction(direction)
        self.unit = ""
        self._compiled = _compiled(pattern)

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        numbers = self._numbers(self._chosen(stdout))
        if not numbers:
            raise ValueError(f"pattern {self.pattern!r} is not in the log")
        return self._selected(numbers)

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value; where numbers are printed once an iteration, with the spread of the steady ones."""
        value = self.evaluate(stdout, metadata)
        progress = self.progress(stdout, metadata)
        if progress is None:
            return Measurement(value=value, unit=self.unit)
        found = summarise(progress.values, self.direction, common_error=progress.common_error)
        return replace(found, value=value, unit=self.unit)

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the steady numbers so far; None where there are fewer than two, or they are no speeds of steps."""
        if not self.shows_progress:
            return None
        whole_lines = stdout[: stdout.rfind("\n") + 1]  # half a number reads as a whole one
        try:
            numbers = self._numbers(list(self._found(lines_of(whole_lines))))
        except (ValueError, TimeoutError):
            return None
        if len(numbers) < 2 or min(numbers) <= 0 or (self.selector == STEADY and _is_running(numbers)):
            return None
        steady, value = numbers[_warm_up(numbers, self.direction) :], self._selected(numbers)
        return Progress(
            values=steady,
            value=value,
            unit=self.unit,
            num_iterations=len(numbers),
            # As far as what is chosen lies from what a long run has, so far off it may be.
            common_error=abs(value / long_run(steady, self.direction) - 1),
        )

    @property
    def shows_progress(self) -> bool:
        return self.selector in SETTLING and _QUALITY.search(self.pattern) is None

    @property
    def measures_time(self) -> bool:
        return _TIME.search(self.pattern) is not None

    def describe(self) -> str:
        return f"regex {self.pattern!r}, {self.selector}, {self.direction}"

    def _selected(self, numbers: Sequence[float]) -> float:
        if self.selector == STEADY:
            return steady_value(numbers, self.direction)
        return float(SELECTORS[self.selector](numbers))

    def _chosen(self, stdout: str) -> Sequence[str]:
        """Return the texts that count: a NaN before the last value does not matter."""
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
                if match[1] is not None:  # an optional group may have matched nothing
                    yield match[1]

    def _numbers(self, texts: Sequence[str]) -> list[float]:
        """Return texts as numbers; a rate that the first steps do not have yet is part of their warm-up."""
        begin = 0
        if self.selector == STEADY:
            known = [index for index, text in enumerate(texts) if math.isfinite(read_number(text) or math.nan)]
            begin = known[0] if known else 0
        return [self._number(text) for text in texts[begin:]]

    def _number(self, text: str) -> float:
        number = read_number(text)
        if number is None:
            raise ValueError(f"pattern {self.pattern!r} found {clean_line(text, 80)!r}, which is no number")
        if not math.isfinite(number):
            raise ValueError(f"pattern {self.pattern!r} found {number}, which is no finite number")
        return number


def _compiled(pattern: str) -> Any:
    """Return a pattern that can be searched with a time limit, or say in one line what is wrong with it."""
    import regex  # here, so that only this evaluator pays for the import

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
    """Return re's pattern for the regex package, where some braces and brackets that are literal in re are syntax."""

    def literal(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith("["):
            return "[" + _IN_SET.sub(lambda each: r"\[" if each[0] == "[" else each[0], text[1:])
        return r"\{" if text == "{" else text

    return _SYNTAX.sub(literal, pattern)
