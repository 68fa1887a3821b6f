"""What a pass over the candidates keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from zenith_tune.planning.best_layouts import BestLayouts, Front

NUM_NEAR_MISSES = 3


@dataclass(slots=True, kw_only=True)
class Search:
    """Hold the best of the layouts seen so far, by several measures."""

    best: BestLayouts
    too_large: BestLayouts = field(default_factory=lambda: BestLayouts(NUM_NEAR_MISSES))
    """The fastest that fail by little."""
    smallest: BestLayouts = field(default_factory=lambda: BestLayouts(1))
    """Those that need the least memory, whether they fit or not."""
    front: Front = field(default_factory=Front)
    num_considered: int = 0
    num_not_fitting: int = 0
