"""One pick: which layout to try next, and why."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """Hold a pick."""

    index: int
    """The row of the layout."""
    why: str
    """In one line."""
    expected_s: float
    """The step time that is believed of it."""
    chance: float
    """That it is faster than the best so far by more than what counts as a gain; 1 where nothing ran yet."""
