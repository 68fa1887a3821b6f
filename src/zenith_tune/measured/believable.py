"""What a measurement may say: beyond these it is a slip of whoever wrote it, and would spoil what is made of it."""

from __future__ import annotations

LEAST_STEP_S, MOST_STEP_S = 1e-6, 86_400.0
"""A step takes from a microsecond to a day."""
MOST_BYTES = 2**40
"""Memory of one GPU."""


def is_step(seconds: float) -> bool:
    """Tell whether a step can take so long.

    >>> is_step(0.5), is_step(1e17), is_step(float("nan"))
    (True, False, False)
    """
    return LEAST_STEP_S <= seconds <= MOST_STEP_S


def is_memory(num_bytes: float) -> bool:
    """Tell whether a GPU can have so much in use.

    >>> is_memory(80 * 2**30), is_memory(0), is_memory(2**59)
    (True, False, False)
    """
    return 0 < num_bytes <= MOST_BYTES
