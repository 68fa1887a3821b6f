from __future__ import annotations

import math

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.study.budget import DEFAULT_TRAIN_HOURS, Budget, Estimate, MemoryLimit, Training


def test_a_stated_length_counts_before_the_commands_steps() -> None:
    assert Training(hours=2, steps=10**9).seconds(1.0) == 7200
    assert Training(steps=10**6).seconds(2.0) == 2e6


def test_a_few_steps_are_a_trial_of_the_users_own_and_no_training() -> None:
    assert Training(steps=20).seconds(1.0) == Training().seconds(1.0) == DEFAULT_TRAIN_HOURS * 3600


def test_the_tighter_budget_counts() -> None:
    budget = Budget(gpu_hours=2, max_hours=1)
    assert budget.left_s(gpu_s=0, elapsed_s=0, num_gpus=8) == 900
    assert budget.left_s(gpu_s=0, elapsed_s=3300, num_gpus=1) == 300
    assert Budget().left_s(gpu_s=1e9, elapsed_s=1e9, num_gpus=8) is None


def test_an_estimate_ends_with_the_budget() -> None:
    whole = Estimate(num_trials=10, wall_s=3 * 3600.0, gpu_s=24 * 3600.0)
    assert Budget().bounded(whole, spent_gpu_s=0, elapsed_s=0) == whole
    assert Budget(max_hours=4, gpu_hours=30).bounded(whole, spent_gpu_s=3600, elapsed_s=60) == whole
    hour = Budget(max_hours=1).bounded(whole, spent_gpu_s=0, elapsed_s=0)
    assert (hour.wall_s, hour.gpu_s, hour.num_trials, hour.is_cut) == (3600, 8 * 3600, 3, True)
    tighter = Budget(max_hours=1, gpu_hours=6).bounded(whole, spent_gpu_s=3600 * 3, elapsed_s=0)
    assert tighter.gpu_s == pytest.approx(3 * 3600) and tighter.wall_s == pytest.approx(3 / 8 * 3600)
    assert Budget(max_hours=1).bounded(whole, spent_gpu_s=0, elapsed_s=9999).num_trials == 0


def test_a_memory_limit_is_never_more_than_the_device_has() -> None:
    assert MemoryLimit(max_bytes=90e9).bytes_of(80e9) == 80e9
    assert MemoryLimit(headroom=0.0).bytes_of(80e9) == 80e9
    assert MemoryLimit().bytes_of(None) is None
    assert 0.99 * 80e9 < (MemoryLimit().bytes_of(80e9) or 0) < 80e9


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_hours_and_prices_must_be_such(value: float) -> None:
    for make in (
        lambda: Training(hours=value),
        lambda: Budget(gpu_hours=value),
        lambda: Budget(max_hours=value),
        lambda: Budget(price=value),
    ):
        with pytest.raises(UsageError):
            make()


def test_one_memory_limit_is_enough() -> None:
    with pytest.raises(UsageError):
        MemoryLimit(max_bytes=1e9, headroom=0.1)


def test_a_training_takes_its_steps_or_eight_hours() -> None:
    assert Training(steps=100_000).seconds(step_s=2.0) == 200_000
    assert Training().seconds(step_s=2.0) == 8 * 3600


def test_gpu_hours_bound_the_time_that_is_left() -> None:
    assert Budget(gpu_hours=2.0).left_s(gpu_s=3600.0, elapsed_s=450.0, num_gpus=8) == 450.0


def test_a_budget_takes_what_it_leaves_open() -> None:
    assert Budget(max_hours=2.0).or_else(Budget(max_hours=1.0, price=2.5)) == Budget(max_hours=2.0, price=2.5)


def test_gpu_time_is_priced_where_the_price_is_known() -> None:
    assert Budget(price=2.5).cost(7200.0) == "2.0 GPU-hours ($5.00)"
    assert Budget().cost(90.0) == "90 GPU-seconds"


def test_headroom_and_sizes_limit_memory() -> None:
    assert MemoryLimit(headroom=0.1).bytes_of(80e9) == 72e9
    assert MemoryLimit(max_bytes=70e9).bytes_of(80e9) == 70e9
