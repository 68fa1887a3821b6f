"""What a configuration error teaches: which other layouts the framework will refuse for the same reason."""

from __future__ import annotations

import numpy as np

from zenith_tune.layouts.axis_words import WORDS, named_axes
from zenith_tune.layouts.layout_batch import LayoutBatch


def refused_alike(layouts: LayoutBatch, index: int, message: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which layouts have the very values that the message speaks of; that at `index` alone if it names none."""
    axes = named_axes(message) or tuple(WORDS)
    alike: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.logical_and.reduce(
        [getattr(layouts, axis) == getattr(layouts, axis)[index] for axis in axes]
    )
    return alike


def rule_of(layouts: LayoutBatch, index: int, message: str) -> str:
    """Return the rule that a refusal stands for, in words."""
    axes = named_axes(message)
    values = ", ".join(f"{axis}={getattr(layouts, axis)[index]}" for axis in axes)
    return f"{values or 'this layout'} is refused: {message}"
