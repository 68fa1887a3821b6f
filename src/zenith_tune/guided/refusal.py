"""What a configuration error teaches: which other layouts the framework will refuse for the same reason."""

from __future__ import annotations

import re

import numpy as np

from zenith_tune.layouts.axis_words import WORDS, named_axes
from zenith_tune.layouts.layout_batch import LayoutBatch

_UNKNOWN_OPTION = re.compile(r"unrecognized argument|no such option|remaining_argv", re.IGNORECASE)
"""The program does not know an option at all: its value, and so the layout, is not at fault."""


def refused_alike(layouts: LayoutBatch, index: int, message: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which layouts have the very values that the message speaks of; that at `index` alone if it names none."""
    axes = _blamed(message) or tuple(WORDS)
    alike: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.logical_and.reduce(
        [getattr(layouts, axis) == getattr(layouts, axis)[index] for axis in axes]
    )
    return alike


def rule_of(layouts: LayoutBatch, index: int, message: str) -> str:
    """Return the rule that a refusal stands for, in words."""
    axes = _blamed(message)
    values = ", ".join(f"{axis}={getattr(layouts, axis)[index]}" for axis in axes)
    return f"{values or 'this layout'} is refused: {message}"


def _blamed(message: str) -> tuple[str, ...]:
    return () if _UNKNOWN_OPTION.search(message) else named_axes(message)
