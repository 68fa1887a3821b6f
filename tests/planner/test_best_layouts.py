from __future__ import annotations

import numpy as np

from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.planner.planner import BestLayouts, Front


def test_pieces_give_what_all_at_once_gives() -> None:
    random = np.random.default_rng(3)
    layouts = LayoutBatch.of(tp=random.integers(1, 9, 5000), pp=random.integers(1, 9, 5000), gbs=64)
    scores = random.uniform(size=5000)
    once, pieces = BestLayouts(12), BestLayouts(12)
    once.add(layouts, scores)
    for start in range(0, 5000, 700):
        rows = np.arange(start, min(start + 700, 5000))
        pieces.add(layouts.take(rows), scores[rows])
    assert pieces.scores.tolist() == once.scores.tolist()
    best = {(int(tp), int(pp)): 9.0 for tp, pp in zip(layouts.tp, layouts.pp, strict=True)}
    for tp, pp, score in zip(layouts.tp, layouts.pp, scores, strict=True):
        best[int(tp), int(pp)] = min(best[int(tp), int(pp)], float(score))
    assert once.scores.tolist() == sorted(best.values())[:12]


def test_variants_with_as_many_tokens_per_rank_are_one() -> None:
    best = BestLayouts(5)
    best.add(LayoutBatch.of(cp=[1, 2, 4], mbs=[1, 2, 2], gbs=8), np.array([2.0, 1.0, 3.0]))
    assert best.layouts.cp.tolist() == [2, 4]


def test_the_front_has_every_point_that_none_beats() -> None:
    random = np.random.default_rng(4)
    time, memory = random.uniform(size=3000), random.uniform(size=3000)
    time[::7] = np.inf
    layouts, front = LayoutBatch.of(tp=np.arange(3000) + 1), Front()
    for start in range(0, 3000, 450):
        rows = np.arange(start, min(start + 450, 3000))
        front.add(layouts.take(rows), time[rows], memory[rows])
    unbeaten = [
        row + 1
        for row in range(3000)
        if np.isfinite(time[row]) and not np.any((time <= time[row]) & (memory < memory[row]))
    ]
    assert sorted(front.layouts.tp.tolist()) == unbeaten
