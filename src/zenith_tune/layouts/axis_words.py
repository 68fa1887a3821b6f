"""Which axes of a layout a framework's message speaks of; loads nothing heavy."""

from __future__ import annotations

import re

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


def named_axes(message: str) -> tuple[str, ...]:
    """Return the axes of a layout that a framework's message speaks of.

    >>> named_axes("number of query groups (4) must be divisible by tensor_model_parallel_size (8)")
    ('tp',)
    """
    return tuple(axis for axis, words in WORDS.items() if re.search(words, message, re.IGNORECASE))
