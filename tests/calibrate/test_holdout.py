from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.calibrate.made_runs import SMALL, made_runs
from tests.calibrate.test_time_fit import FAMILY, MEGATRON, TRUTH
from zenith_tune.calibrate.holdout import hold_out, interval, time_residuals
from zenith_tune.calibrate.robust_fit import folds
from zenith_tune.calibrate.time_fit import RunTable, TimeFit


def test_a_ninety_percent_interval_holds_nine_of_ten_new_runs() -> None:
    runs = made_runs(TRUTH, noise=0.1)
    low, high = interval(time_residuals(TimeFit(FAMILY, RunTable.of(runs, MEGATRON), MEGATRON)))
    fresh = np.random.default_rng(9).normal(0, 0.1, 20_000)
    assert 0.85 <= np.mean((low <= fresh) & (fresh <= high)) <= 0.95


def test_few_residuals_make_a_wider_interval() -> None:
    few = np.array([-0.1, 0.0, 0.1])
    low, high = interval(few)
    assert low < -0.2 and high > 0.2
    assert interval(np.empty(0)) == (-0.5, 0.5)


def test_a_landscape_is_predicted_without_having_been_seen() -> None:
    runs = [run for run in made_runs(TRUTH) if run.model == SMALL]
    odd = [replace(run, step_s=2 * (run.step_s or 0)) if run.num_gpus == 64 else run for run in runs]
    ((_, judged),) = hold_out(odd)
    errors = {size: np.median([abs(each.error) for each in judged if each.run.num_gpus == size]) for size in (8, 64)}
    assert errors[64] > 0.5 > 0.1 > errors[8], "runs twice as slow as their kin cannot be foretold"


def test_all_runs_of_a_place_are_left_out_together() -> None:
    places = [("a", 8), ("b", 8), ("a", 8), ("c", 8)]
    left_out = folds(places, most=2)
    assert [fold.tolist() for fold in left_out] == [[True, False, True, True], [False, True, False, False]]
    assert np.sum(folds(places), axis=0).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("count", [1, 5, 45])
def test_runs_of_one_place_are_left_out_in_at_most_twenty_folds(count: int) -> None:
    left_out = folds(["here"] * count)
    assert len(left_out) == min(count, 20) and np.sum(left_out, axis=0).tolist() == [1] * count
