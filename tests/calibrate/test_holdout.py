from __future__ import annotations

import numpy as np
import pytest

from tests.calibrate.made_runs import made_runs
from tests.calibrate.test_time_fit import FAMILY, MEGATRON, TRUTH
from zenith_tune.calibrate.holdout import HeldOutSteps, held_out_steps, interval, step_errors
from zenith_tune.calibrate.robust_fit import folds
from zenith_tune.calibrate.time_fit import RunTable, TimeFit


def test_a_ninety_percent_interval_holds_nine_of_ten_new_runs() -> None:
    runs = made_runs(TRUTH, noise=0.1)
    low, high = interval(held_out_steps(TimeFit(FAMILY, RunTable.of(runs, MEGATRON), MEGATRON)).residuals)
    fresh = np.random.default_rng(9).normal(0, 0.1, 20_000)
    assert 0.85 <= np.mean((low <= fresh) & (fresh <= high)) <= 0.95


def made_errors(num: int, host_sd: float, seed: int, host_share: float | None = None) -> HeldOutSteps:
    """Return runs whose GPU's work is off by 3%, and whose host is off by `host_sd`."""
    rng = np.random.default_rng(seed)
    share = rng.choice([0.0, 0.9] if host_share is None else [host_share], num)
    residuals = rng.normal(0, 1, num) * np.sqrt(0.03**2 + (host_sd * share) ** 2)
    return HeldOutSteps(np.ones(num), residuals, np.stack([share, np.zeros(num), np.zeros(num)]))


@pytest.mark.parametrize("host_sd", [0.1, 0.5])
def test_the_interval_holds_nine_of_ten_of_each_kind_of_run(host_sd: float) -> None:
    errors = step_errors(made_errors(200, host_sd, seed=1))
    for share in (0.0, 0.9):
        fresh = made_errors(20_000, host_sd, seed=2, host_share=share)
        wider = errors.widening(fresh.shares)
        low, high = (end * wider for end in errors.interval)
        assert 0.82 <= np.mean((low <= fresh.residuals) & (fresh.residuals <= high)) <= 0.98, share


def test_a_host_that_no_run_shows_makes_wide_intervals_where_it_decides_the_step() -> None:
    errors = step_errors(made_errors(50, 0.0, seed=3, host_share=0.0))
    here, there = errors.widening(np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]))
    assert here == 1 and there * errors.spread > 0.2 > 0.06 > errors.spread


def test_few_residuals_make_a_wider_interval() -> None:
    few = np.array([-0.1, 0.0, 0.1])
    low, high = interval(few)
    assert low < -0.2 and high > 0.2
    nothing = HeldOutSteps(np.empty(0), np.empty(0), np.empty((3, 0)))
    assert step_errors(nothing).interval == (-0.5, 0.5)


def test_all_runs_of_a_place_are_left_out_together() -> None:
    places = [("a", 8), ("b", 8), ("a", 8), ("c", 8)]
    left_out = folds(places, most=2)
    assert [fold.tolist() for fold in left_out] == [[True, False, True, True], [False, True, False, False]]
    assert np.sum(folds(places), axis=0).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("count", [1, 5, 45])
def test_runs_of_one_place_are_left_out_in_at_most_twenty_folds(count: int) -> None:
    left_out = folds(["here"] * count)
    assert len(left_out) == min(count, 20) and np.sum(left_out, axis=0).tolist() == [1] * count
