"""The best of many layouts, collected in batches: by score, the simpler first where two tie, and by time and memory.

Two layouts tie where their scores differ by less than the prediction can resolve; the simpler one then comes first,
since it has less to go wrong.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from zenith_tune.estimates.calibration import Calibration
from zenith_tune.estimates.workload import FloatArray
from zenith_tune.layouts.layout_batch import LayoutBatch

DISTINCT = ("tp", "pp", "ep", "etp")
"""Axes that, with a rank's tokens per micro-batch, distinguish layouts; others make variants of one."""
TIED = 0.15
"""Share of the spread of predictions below which two layouts of one job tie: most of an error is common to both. It is
0.021 for Megatron. Held-out neighbours that were predicted within 5% of each other were off by 0.032 (Ultra-Scale
Playbook up to 64 GPUs, 151 pairs) and 0.064 (BLOOM's, 117 pairs) at the median, repeats of one run by 0.02 to 0.05."""
MOST_TIED = 0.025
"""Upper limit of that difference: a few runs that are far off widen the spread, and the others still differ."""
SIZES = ("tp", "pp", "vp", "cp", "ep", "etp")
RECOMPUTE_COST = np.array([0.0, 1.0, 1.0, 2.0])
"""Complexity of recomputation in doublings of a size: none, selective, full, and full for some layers."""

Rows = npt.NDArray[np.intp]

_MIX = np.random.default_rng(20240101).integers(1, 2**62, len(DISTINCT) + 1, dtype=np.uint64) | np.uint64(1)


def tied_within(calibration: Calibration) -> float:
    """Return the relative difference of two steps below which they tie."""
    return min(TIED * calibration.time.spread, MOST_TIED)


def complexity(layouts: LayoutBatch) -> FloatArray:
    """Return the distance of layouts from plain data parallelism, in doublings of a size."""
    sizes = np.prod([getattr(layouts, name).astype(np.float64) for name in SIZES], axis=0)
    result: FloatArray = np.log2(sizes) + RECOMPUTE_COST[layouts.recompute]
    return result


class BestLayouts:
    """The layouts of the lowest score, one per way to split the model and its tokens: the simplest that ties."""

    def __init__(self, size: int, tied: float = 0.0) -> None:
        self._size, self._tied = size, tied
        self._kept = LayoutBatch.of().take(np.arange(0))
        self._kept_scores: FloatArray = np.empty(0)
        self._limit = np.inf
        self.layouts = self._kept
        self.scores: FloatArray = np.empty(0)
        self.num_tied = 0
        """How many at the head tie with the fastest layout."""

    def __len__(self) -> int:
        return len(self.scores)

    def add(self, layouts: LayoutBatch, scores: FloatArray) -> None:
        """Add a batch; a layout whose score is not finite is left out."""
        better = np.flatnonzero(scores < self._limit)
        if not len(better):
            return
        both = LayoutBatch.concatenate([self._kept, layouts.take(better)])
        all_scores = np.concatenate([self._kept_scores, scores[better]])
        order = np.argsort(all_scores, kind="stable")
        both, all_scores = both.take(order), all_scores[order]
        _, first, way = np.unique(_keys(both), return_index=True, return_inverse=True)
        leads = np.sort(first)[: self._size]
        if len(leads) == self._size:
            self._limit = all_scores[leads[-1]] * (1 + self._tied)
        costs = complexity(both)
        simplest = _simplest(all_scores, costs, first[way], self._tied)[leads]
        # The fastest of each way is kept too: which layouts tie changes when a faster one comes.
        rows = np.union1d(leads, simplest)
        self._kept, self._kept_scores = both.take(rows), all_scores[rows]
        groups = _tied_groups(all_scores[leads], all_scores[simplest], costs[simplest], self._tied)
        self.num_tied, listed = len(groups[0]), simplest[np.concatenate(groups)]
        self.layouts, self.scores = both.take(listed), all_scores[listed]


def _simplest(scores: FloatArray, costs: FloatArray, lead: Rows, tied: float) -> Rows:
    """Return the simplest row that ties with each row that leads its way; other rows map to themselves."""
    found = np.arange(len(scores))
    ties = np.flatnonzero(scores <= scores[lead] * (1 + tied))
    order = ties[np.lexsort((scores[ties], costs[ties], lead[ties]))]
    leads, at = np.unique(lead[order], return_index=True)
    found[leads] = order[at]
    return found


def _tied_groups(fastest: FloatArray, scores: FloatArray, costs: FloatArray, tied: float) -> list[Rows]:
    """Return ways in their order: those that tie with the fastest of the rest come next, the simplest first.

    `fastest` are the lowest scores of the ways, ascending, and `scores` those of their simplest layouts.
    """
    groups, left = list[Rows](), np.arange(len(scores))
    while len(left):
        ties = scores[left] <= fastest[left[0]] * (1 + tied)
        rows = left[ties]
        groups.append(rows[np.lexsort((scores[rows], costs[rows]))])
        left = left[~ties]
    return groups


class Front:
    """The layouts that no other beats in both time and memory."""

    def __init__(self) -> None:
        self.layouts = LayoutBatch.of().take(np.arange(0))
        self._time: FloatArray = np.empty(0)
        self._memory: FloatArray = np.empty(0)

    def add(self, layouts: LayoutBatch, time: FloatArray, memory: FloatArray) -> None:
        """Add a batch; a layout whose time is not finite is left out."""
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
    """Return a hash of 64 bits for each way to split the model."""
    keys = np.zeros(len(layouts), np.uint64)
    tokens = (layouts.mbs / layouts.cp).view(np.uint64)
    columns = [*(getattr(layouts, name).astype(np.uint64) for name in DISTINCT), tokens]
    for column, factor in zip(columns, _MIX, strict=True):
        keys = (keys ^ column) * factor
        keys ^= keys >> np.uint64(29)
    return keys
