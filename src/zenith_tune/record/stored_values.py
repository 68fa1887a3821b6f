"""What was measured of a trial, as records and exports keep it: anything may stand there, and only numbers count."""

from __future__ import annotations

import math
from typing import Any

TEXTS = ("cause", "failure", "early", "unit")
NUMBERS = ("duration_s", "spread", "step_s", "peak_memory_bytes", "num_samples", "num_runs")


def measured(content: dict[str, Any]) -> dict[str, Any]:
    """Return what was measured of a trial, and said of it; raises TypeError where a number is none."""
    known = {name: content[name] for name in (*TEXTS, *NUMBERS) if content.get(name) is not None}
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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Not by float(value): a whole number of a thousand digits has none.
    if not is_number or not abs(value) < math.inf or (isinstance(value, int) and value.bit_length() > 1000):
        raise TypeError(f"{name} is {repr(value)[:40] if not is_number or isinstance(value, float) else 'too long'}")
    return value
