from __future__ import annotations

import numpy as np

from zenith_tune.estimates.calibration import Calibration, TimeCalibration
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.planner.best_layouts import MOST_TIED, BestLayouts, Front, complexity, tied_within


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


def test_the_simplest_variant_that_ties_stands_for_its_way_whatever_the_pieces() -> None:
    layouts = LayoutBatch.of(tp=2, pp=4, vp=[1, 2, 4, 8, 16], gbs=8)
    scores = np.array([1.05, 1.019, 1.01, 1.005, 1.0])
    for order in ([0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 4, 0, 3, 2]):
        best = BestLayouts(3, tied=0.02)
        for row in order:
            best.add(layouts.take(np.array([row])), scores[[row]])
        assert (best.layouts.vp.tolist(), best.scores.tolist()) == ([2], [1.019])


def test_ways_that_tie_are_listed_by_their_simplicity_and_others_by_their_score() -> None:
    best = BestLayouts(4, tied=0.02)
    best.add(LayoutBatch.of(tp=[8, 4, 2, 1], gbs=8), np.array([1.0, 1.01, 1.03, 1.04]))
    assert best.layouts.tp.tolist() == [4, 8, 1, 2]


def test_a_wide_spread_ties_no_more_than_neighbours_are_off() -> None:
    sharp, wide = (Calibration(time=TimeCalibration(interval=(-end, end))) for end in (0.05, 1.0))
    assert 0 < tied_within(sharp) < 0.01 and tied_within(wide) == MOST_TIED


def test_what_stands_for_a_way_ties_with_the_fastest_of_all_and_not_with_another_that_ties() -> None:
    best = BestLayouts(2, tied=0.02)
    best.add(LayoutBatch.of(tp=[4, 4, 1], pp=2, vp=[8, 1, 1], gbs=8), np.array([1.0, 1.019, 1.03]))
    assert best.layouts.tp.tolist() == [4, 1] and best.layouts.vp.tolist() == [1, 1]


def test_complexity_counts_doublings() -> None:
    assert complexity(LayoutBatch.of(tp=[1, 2, 2], pp=[1, 4, 4], vp=[1, 1, 8], recompute=[0, 0, 3])).tolist() == [
        0.0,
        3.0,
        8.0,
    ]


def test_the_best_layout_has_the_lowest_score() -> None:
    best = BestLayouts(1)
    best.add(LayoutBatch.of(tp=[1, 2, 4], gbs=8), np.array([3.0, 1.0, np.inf]))
    assert best.layouts.tp.tolist() == [2]
    assert best.scores.tolist() == [1.0]
