"""An evaluator for programs that log objects: a number of each line's JSON, by its name."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import EvaluatorRegistry
from zenith_tune.evaluators.regex import SELECTORS, RegexEvaluator
from zenith_tune.study.parameters import Direction

PREFIX = "json:"
_RATE = re.compile(r"per_?s(ec(ond)?)?(?![a-z])|/s(ec)?$|throughput|tflops|mfu|speed", re.IGNORECASE)
"""What is better the larger it is, unless the user says otherwise."""
_KEY = re.compile(r"[\w./ -]{1,200}")


@EvaluatorRegistry.register("json")
class JsonEvaluator(RegexEvaluator):
    """Read a number by its name from the objects that a program prints, one to a line; dots lead into inner objects.

    What stands before the object does not matter, and an object may be Python's own, as the Trainer of Hugging Face
    prints it. Rates are maximized, everything else minimized, unless `direction` says otherwise.

    >>> JsonEvaluator("tokens_per_s").evaluate('INFO {"step": 1, "tokens_per_s": 512.0}', {})
    512.0
    """

    def __init__(self, key: str, selector: str = "last", direction: Direction | None = None) -> None:
        if selector not in SELECTORS:
            raise UnknownNameError("selector", selector, SELECTORS)
        if not _KEY.fullmatch(key):
            hint = "give it as in --objective json:tokens_per_s"
            raise UsageError(f"a number's name must be letters, digits and dots, but got {key[:40]!r}", hint=hint)
        self.key, self.pattern, self.selector = key, PREFIX + key, selector
        usual = Direction.MAXIMIZE if _RATE.search(key) else Direction.MINIMIZE
        self.direction = usual if direction is None else Direction(direction)

    def describe(self) -> str:
        """Say what is measured."""
        return f"{self.pattern}, {self.selector}, {self.direction}"

    def _found(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the numbers as they are written; what is no number is left to be refused."""
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


def _object(text: str) -> Any:
    try:
        return json.JSONDecoder().raw_decode(text)[0]
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(text[: text.rfind("}") + 1])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
