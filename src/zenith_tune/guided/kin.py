"""What one layout's trial says for certain of others that are cut alike, whatever the estimates."""

from __future__ import annotations

import numpy as np

from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.layouts.layout_batch import (
    RECOMPUTE_BLOCK,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    BoolArray,
    LayoutBatch,
)

CUT = ("tp", "pp", "vp", "cp", "ep", "etp", "dp", "zero", "sequence_parallel", "flash_attention")
"""What cuts the model and its work."""


def needs_more(layouts: LayoutBatch, index: int) -> BoolArray:
    """Tell which layouts need more memory than that at `index`: a larger micro-batch, or the same recomputed less."""
    kept = _kept(layouts)
    more = _cut_alike(layouts, index) & (layouts.mbs >= layouts.mbs[index]) & (kept >= kept[index])
    # Rows that are twins here may differ in what the planner cannot tell, such as the modules that are recomputed.
    larger = (layouts.mbs > layouts.mbs[index]) | (kept > kept[index])
    return _others(more & larger & _comparable(layouts, index), index)


def is_slower(layouts: LayoutBatch, index: int) -> BoolArray:
    """Tell which layouts cannot be faster than that at `index`: the same work, and more of it twice."""
    kept = _kept(layouts)
    slower = _cut_alike(layouts, index) & (layouts.mbs == layouts.mbs[index]) & (kept < kept[index])
    return _others(slower & _comparable(layouts, index), index)


def _kept(layouts: LayoutBatch) -> FloatArray:
    """Return how much is kept for the backward pass; of blocks, the fewer are recomputed the more."""
    r = layouts.recompute
    blocks = 1 / (1.0 + layouts.recompute_layers)
    return np.select([r == RECOMPUTE_NONE, r == RECOMPUTE_SELECTIVE, r == RECOMPUTE_BLOCK], [3.0, 2.0, blocks], 0.0)


def _comparable(layouts: LayoutBatch, index: int) -> BoolArray:
    """Tell where one kept more than the other is more memory and less work: blocks and selective mix both."""
    kinds = {RECOMPUTE_SELECTIVE, RECOMPUTE_BLOCK}
    here = int(layouts.recompute[index])
    if here not in kinds:
        return np.ones(len(layouts), np.bool_)
    other: BoolArray = layouts.recompute != (kinds - {here}).pop()
    return other


def _cut_alike(layouts: LayoutBatch, index: int) -> BoolArray:
    alike: BoolArray = np.logical_and.reduce([getattr(layouts, name) == getattr(layouts, name)[index] for name in CUT])
    return alike


def _others(chosen: BoolArray, index: int) -> BoolArray:
    chosen = chosen.copy()
    chosen[index] = False
    return chosen
