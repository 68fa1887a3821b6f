"""The examples of base."""

from __future__ import annotations

from zenith_tune.runners.base import check_seconds, parallel_trials


def test_a_sane_time_is_taken() -> None:
    check_seconds("ray", "grace_s", 5.0)


def test_trials_in_parallel_are_a_number_or_auto() -> None:
    assert parallel_trials("auto") is None
    assert parallel_trials("4") == 4
