"""The best of many layouts, kept while they stream by in pieces."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zenith_tune.layouts.layout_batch import LayoutBatch

DISTINCT = ("tp", "pp", "ep", "etp")
"""Two layouts that agree in these and in a rank's tokens per micro-batch are variants of one: the better is kept."""

FloatArray = npt.NDArray[np.float64]
_MIX = np.random.default_rng(20240101).integers(1, 2**62, len(DISTINCT) + 1, dtype=np.uint64) | np.uint64(1)


class BestLayouts:
    """Keep the layouts of the lowest score, one per way to cut the model and its tokens.

    >>> best = BestLayouts(1)
    >>> best.add(LayoutBatch.of(tp=[1, 2, 4], gbs=8), np.array([3.0, 1.0, np.inf]))
    >>> best.layouts.tp.tolist(), best.scores.tolist()
    ([2], [1.0])
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.layouts = LayoutBatch.of().take(np.arange(0))
        self.scores: FloatArray = np.empty(0)

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, layouts: LayoutBatch, scores: FloatArray) -> None:
        """Take in a piece; a layout whose score is not finite is none of them."""
        limit = self.scores[-1] if len(self.scores) == self._size else np.inf
        better = np.flatnonzero(scores < limit)
        if not len(better):
            return
        both = LayoutBatch.concatenate([self.layouts, layouts.take(better)])
        all_scores = np.concatenate([self.scores, scores[better]])
        order = np.argsort(all_scores, kind="stable")
        _, first = np.unique(_keys(both)[order], return_index=True)
        chosen = order[np.sort(first)[: self._size]]
        self.layouts, self.scores = both.take(chosen), all_scores[chosen]


class Front:
    """Keep the layouts that no other beats in both time and memory."""

    def __init__(self) -> None:
        self.layouts = LayoutBatch.of().take(np.arange(0))
        self._time: FloatArray = np.empty(0)
        self._memory: FloatArray = np.empty(0)

    def add(self, layouts: LayoutBatch, time: FloatArray, memory: FloatArray) -> None:
        """Take in a piece; a layout whose time is not finite is none of them."""
        finite = np.flatnonzero(np.isfinite(time))
        both = LayoutBatch.concatenate([self.layouts, layouts.take(finite)])
        all_time = np.concatenate([self._time, time[finite]])
        all_memory = np.concatenate([self._memory, memory[finite]])
        order = np.lexsort((all_memory, all_time))
        sorted_memory = all_memory[order]
        before = np.concatenate([[np.inf], np.minimum.accumulate(sorted_memory)[:-1]])
        chosen = order[sorted_memory < before]
        self.layouts, self._time, self._memory = both.take(chosen), all_time[chosen], all_memory[chosen]


def _keys(layouts: LayoutBatch) -> npt.NDArray[np.uint64]:
    """Return one number per way to cut the model; two ways share one with a chance of 1 to 2**64."""
    keys = np.zeros(len(layouts), np.uint64)
    tokens = (layouts.mbs / layouts.cp).view(np.uint64)
    columns = [*(getattr(layouts, name).astype(np.uint64) for name in DISTINCT), tokens]
    for column, factor in zip(columns, _MIX, strict=True):
        keys = (keys ^ column) * factor
        keys ^= keys >> np.uint64(29)
    return keys
