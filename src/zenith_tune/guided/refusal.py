"""What a configuration error teaches: which other layouts the framework will refuse for the same reason."""

from __future__ import annotations

import re

import numpy as np

from zenith_tune.layouts.layout_batch import LayoutBatch

WORDS = {
    "tp": r"tensor[\s_-]*(?:model[\s_-]*)?parallel|\btp\b|num_attention_heads|query[\s_-]*groups|attention heads",
    "pp": r"pipeline[\s_-]*(?:model[\s_-]*)?parallel|\bpp\b|num_layers|number of layers",
    "vp": r"virtual|interleav",
    "cp": r"context[\s_-]*parallel|\bcp\b",
    "ep": r"expert[\s_-]*(?:model[\s_-]*)?parallel|\bep\b|num_experts|number of experts",
    "etp": r"expert[\s_-]*tensor|\betp\b",
    "mbs": r"micro[\s_-]*batch|\bmbs\b",
    "dp": r"data[\s_-]*parallel|\bdp\b",
    "recompute": r"recompute|checkpoint(?:ing)? activations",
    "sequence_parallel": r"sequence[\s_-]*parallel",
    "zero": r"distributed[\s_-]*optimizer|\bzero\b",
}
"""Words by which a message names an axis of the layout."""
AXES = tuple(WORDS)


def named_axes(message: str) -> tuple[str, ...]:
    """Return the axes of a layout that a framework's message speaks of.

    >>> named_axes("number of query groups (4) must be divisible by tensor_model_parallel_size (8)")
    ('tp',)
    """
    return tuple(axis for axis, words in WORDS.items() if re.search(words, message, re.IGNORECASE))


def refused_alike(layouts: LayoutBatch, index: int, message: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which layouts have the very values that the message speaks of; that at `index` alone if it names none."""
    axes = named_axes(message) or AXES
    alike: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.logical_and.reduce(
        [getattr(layouts, axis) == getattr(layouts, axis)[index] for axis in axes]
    )
    return alike


def rule_of(layouts: LayoutBatch, index: int, message: str) -> str:
    """Return the rule that a refusal stands for, in words."""
    axes = named_axes(message)
    values = ", ".join(f"{axis}={getattr(layouts, axis)[index]}" for axis in axes)
    return f"{values or 'this layout'} is refused: {message}"
