"""How the best of a study came about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.studies import BASELINE, TRIALS, ok
from zenith_tune.report.search_digest import best_so_far
from zenith_tune.study.parameters import Direction
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial


def study_of(*trials: Trial, direction: Direction = Direction.MAXIMIZE) -> Study:
    study = Study(direction)
    for number, trial in enumerate(trials):
        study.add(replace(trial, number=number, identity=trial.identity or f"run {number}"))
    return study


def test_it_begins_with_the_users_own_command_and_ends_with_the_fastest() -> None:
    assert best_so_far(study_of(*TRIALS)) == [(0, 50_000.0), (3, 55_000.0), (4, 61_000.0)]


def test_trials_that_are_slower_than_the_own_command_change_nothing() -> None:
    slower = study_of(BASELINE, ok(1, 1, 1, 110.0), ok(2, 1, 1, 120.0))
    assert best_so_far(slower) == [(0, 50_000.0)]


def test_less_is_better_where_it_is_minimized() -> None:
    found = best_so_far(study_of(BASELINE, ok(1, 1, 1, 110.0), ok(2, 1, 1, 120.0), direction=Direction.MINIMIZE))
    assert found == [(0, 50_000.0), (1, 110.0)]


def test_what_ran_again_alone_counts_from_its_first_run_on_as_it_ran_then() -> None:
    beside = replace(ok(2, 1, 1, 90_000.0), identity="a")
    study = study_of(BASELINE, beside, ok(4, 1, 1, 60_000.0), replace(ok(2, 1, 1, 55_000.0), rerun_of=1))
    found = best_so_far(study)
    assert found == [(0, 50_000.0), (1, 55_000.0), (2, 60_000.0)]
    assert study.leader is not None and found[-1][0] == study.leader.number


def test_the_users_own_command_that_ran_again_counts_as_it_ran_then() -> None:
    own = replace(BASELINE, identity="own")
    again = replace(own, value=52_000.0, rerun_of=0)
    assert best_so_far(study_of(own, ok(2, 1, 1, 60_000.0), again)) == [(0, 52_000.0), (1, 60_000.0)]


def test_what_only_ran_beside_others_and_is_not_believed_is_no_best() -> None:
    beside = replace(ok(2, 1, 1, 60_000.0), identity="a")
    lucky = ok(4, 1, 1, 61_000.0)
    study = study_of(BASELINE, beside, lucky, replace(ok(2, 1, 1, 60_500.0), rerun_of=1))
    found = best_so_far(study)
    assert found == [(0, 50_000.0), (1, 60_500.0)]
    assert study.leader is not None and found[-1][1] == study.leader.value


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_value_that_is_no_number_is_no_best(value: float) -> None:
    assert best_so_far(study_of(ok(1, 1, 1, value), ok(1, 1, 1, 5.0))) == [(1, 5.0)]
