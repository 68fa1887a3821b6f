"""What was measured of a trial, as records and exports keep it: anything may stand there, and only numbers count."""

from __future__ import annotations

import math
from typing import Any

TEXTS = ("cause", "failure", "early", "unit")
NUMBERS = ("duration_s", "spread", "step_s", "peak_memory_bytes", "num_samples", "num_runs")
_MOST_BITS = 1000
"""Whole numbers of more than these have no float."""


def measured(content: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured of a trial, and said of it; raises TypeError where a number or a text is none.

    An evaluator of somebody's own may write a spread that is not a number: it is left out.
    """
    known = {name: content[name] for name in (*TEXTS, *NUMBERS) if content.get(name) is not None}
    known = {name: value for name, value in known.items() if not _is_odd_float(value)}
    for name, value in known.items():
        if name in NUMBERS:
            finite(name, value)
        elif not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}")
    return known


def finite(name: str, value: Any) -> Any:
    """Return a number that can be computed with, or None; raises TypeError where it is something else.

    >>> finite("value", 2.5)
    2.5
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or _is_odd_float(value):
        raise TypeError(f"{name} is {value!r}")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise TypeError(f"{name} is a number of {value.bit_length()} bits")
    return value


def _is_odd_float(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
