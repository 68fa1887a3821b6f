"""An evaluator for programs that log objects: a number of each line's JSON, by its name."""

from __future__ import annotations

import ast
import itertools
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import EvaluatorRegistry
from zenith_tune.evaluators.regex import KNOWN, RegexEvaluator, usual_direction, usual_selector
from zenith_tune.evaluators.steps import read_number
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial_log import lines_of

PREFIX = "json:"
_PER_SECOND = re.compile(r"([^\W_]+)(?:_per_|/)(?:s|sec|second)(_per_gpu|/gpu)?$", re.IGNORECASE)
_UNITS = {r"(^|[_.])ms$": "ms", r"_(s|sec|secs|seconds)$": "s", r"(^|[_.])tflops$": "TFLOP/s"}
"""Endings of names that state a unit."""
MOST_NAMED = 12
_KEY = re.compile(r"[\w./ -]{1,200}")


@EvaluatorRegistry.register("json")
class JsonEvaluator(RegexEvaluator):
    """A number by its name in the objects that a program prints, one per line; dots lead into inner objects.

    Text before the object does not matter, and it may be a dict of Python, as Hugging Face's Trainer prints it. Rates
    are maximized, everything else minimized, unless `direction` says otherwise; of a number that each step prints the
    steady part counts, of a loss or another quality the last.
    """

    def __init__(self, key: str, selector: str | None = None, direction: Direction | None = None) -> None:
        selector = selector or usual_selector(key)
        if selector not in KNOWN:
            raise UnknownNameError("selector", selector, KNOWN)
        if not _KEY.fullmatch(key):
            hint = "give it as in --objective json:tokens_per_s"
            raise UsageError(f"a number's name must be letters, digits and dots, but got {key[:40]!r}", hint=hint)
        self.key, self.pattern, self.selector, self.unit = key, PREFIX + key, selector, unit_of(key)
        self.direction = usual_direction(key) if direction is None else Direction(direction)

    def describe(self) -> str:
        return f"{self.pattern}, {self.selector}, {self.direction}"

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        """Return the value, or raise ValueError with the names that the log has instead."""
        try:
            return super().evaluate(stdout, metadata)
        except ValueError as error:
            names = [] if self._chosen(stdout) else _names(lines_of(stdout))
            raise ValueError(f"{error}; the log has {', '.join(names)}" if names else str(error)) from None

    def _found(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the values as they are written, whether numbers or not."""
        last = self.key.rpartition(".")[2]
        for line in lines:
            if last not in line or (begin := line.find("{")) < 0:
                continue
            value = self._value(_object(line[begin:]))
            if value is not None:
                yield str(value)

    def _value(self, found: Any) -> Any:
        """Return the value under the whole name, or along its dots."""
        if isinstance(found, dict) and self.key in found:
            return found[self.key]
        for name in self.key.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found


def unit_of(key: str) -> str:
    """Return the unit that a number's name states, or nothing.

    >>> unit_of("train_tokens_per_second"), unit_of("perf.step_time_ms"), unit_of("samples/s"), unit_of("loss")
    ('tokens/s', 'ms', 'samples/s', '')
    """
    if (rate := _PER_SECOND.search(key)) is not None:
        return f"{rate[1]}/s" + "/GPU" * bool(rate[2])
    return next((unit for ending, unit in _UNITS.items() if re.search(ending, key, re.IGNORECASE)), "")


def _names(lines: Iterable[str]) -> list[str]:
    """Return the names of the first numbers that the objects hold."""
    objects = (_object(line[line.find("{") :]) for line in lines if "{" in line)
    found = (name for each in objects if isinstance(each, dict) for name, value in each.items() if _is_number(value))
    return list(dict.fromkeys(itertools.islice(map(str, found), MOST_NAMED * MOST_NAMED)))[:MOST_NAMED]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and read_number(value) is not None)


def _object(text: str) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # for text such as `1and`
            return ast.literal_eval(text[: text.rfind("}") + 1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
