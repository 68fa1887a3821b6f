from __future__ import annotations

from dataclasses import replace

import pytest

from zenith_tune import Direction, Outcome, Trial
from zenith_tune.errors import UsageError
from zenith_tune.study.precision import TO_90, LaunchNoise
from zenith_tune.study.study import Study
from zenith_tune.tuning.watch import Timeouts

NAN, INF = float("nan"), float("inf")


def trial(value: float | None, number: int = 1, *, duration_s: float = 1.0, is_baseline: bool = False) -> Trial:
    outcome = Outcome.OK if value is not None else Outcome.ERROR
    return Trial(params={}, outcome=outcome, value=value, number=number, duration_s=duration_s, is_baseline=is_baseline)


def study(direction: Direction, *trials: Trial) -> Study:
    made = Study(direction)
    for each in trials:
        made.add(each)
    return made


def test_a_failed_trial_is_never_best() -> None:
    made = study(Direction.MINIMIZE, trial(None, 1), trial(5.0, 2), trial(None, 3))
    assert made.best is not None and made.best.number == 2


def test_the_first_of_equals_stays_best() -> None:
    made = study(Direction.MAXIMIZE, trial(5.0, 1), trial(5.0, 2))
    assert made.best is not None and made.best.number == 1


@pytest.mark.parametrize(("direction", "gain"), [(Direction.MINIMIZE, 1.0), (Direction.MAXIMIZE, -0.5)])
def test_the_gain_is_how_much_faster_than_the_baseline(direction: Direction, gain: float) -> None:
    assert study(direction, trial(2.0, is_baseline=True), trial(1.0)).gain == gain


def test_without_a_baseline_or_a_success_there_is_no_gain() -> None:
    assert study(Direction.MINIMIZE, trial(1.0)).gain is None
    assert study(Direction.MINIMIZE, trial(None, is_baseline=True), trial(1.0)).gain is None
    assert study(Direction.MINIMIZE, trial(1.0, is_baseline=True), trial(None)).gain is None


def test_the_fastest_may_be_the_users_own_command() -> None:
    base = trial(1.0, is_baseline=True)
    assert study(Direction.MINIMIZE, base, trial(2.0)).fastest is base


@pytest.mark.parametrize(
    ("value", "is_within_noise", "is_clear"),
    [(0.99, False, False), (1.07, True, False), (1.11, False, False), (1.15, False, True), (1.4, False, True)],
)
def test_the_noise_of_a_gain_is_that_of_both_runs_and_of_their_launches(
    value: float, is_within_noise: bool, is_clear: bool
) -> None:
    def noisy(value: float, error: float, *, is_baseline: bool) -> Trial:
        return Trial(params={}, outcome=Outcome.OK, value=value, error=error, is_baseline=is_baseline)

    made = study(Direction.MAXIMIZE, noisy(1.0, 0.03, is_baseline=True), noisy(value, 0.04, is_baseline=False))
    made.earlier_launches = LaunchNoise().seen([0.01] * 10)
    half_width = made.gain_half_width
    assert half_width is not None and TO_90 * 0.05 < half_width < TO_90 * 0.055
    assert (made.is_within_noise, made.is_clear) == (is_within_noise, is_clear)


def test_a_repeat_of_the_users_own_settings_gains_nothing() -> None:
    base, again = trial(1.0, is_baseline=True), Trial(params={"tp": 2}, outcome=Outcome.OK, value=0.7)
    made = study(Direction.MINIMIZE, base, again)
    reported = []
    for own in (None, {"tp": 4}, {"tp": 2}):
        made.own_params = own
        reported.append((made.best_is_own, made.gain))
    faster = pytest.approx(1 / 0.7 - 1)
    assert reported == [(False, faster), (False, faster), (True, 0.0)]
    assert made.gain_of(again) == faster, "what two runs differ by is still known"
    made.add(Trial(params={"tp": 4}, outcome=Outcome.OK, value=0.5))
    assert not made.best_is_own
    assert made.gain == pytest.approx(1.0)


@pytest.mark.parametrize(("value", "is_best"), [(100.4, False), (103.0, True)])
def test_a_lever_is_part_of_the_best_only_where_it_proves_faster(value: float, is_best: bool) -> None:
    plain, other = replace(trial(100.0, 1), params={"tp": 2}), replace(trial(99.0, 2), params={"tp": 4})
    lever = replace(trial(value, 3), params={"tp": 2, "fp8": True}, identity="fp8")
    found = study(Direction.MAXIMIZE, plain, other, lever)
    assert found.best is (lever if is_best else plain)
    again = replace(lever, number=4, rerun_of=3, value=100.4)
    found.add(again)
    assert found.best is plain, "what counts is its last run"


def test_no_dynamic_limit_before_the_first_success() -> None:
    timeouts = Timeouts(dynamic=True)
    assert timeouts.limit_s(study(Direction.MINIMIZE, trial(None))) is None
    assert timeouts.limit_s(study(Direction.MINIMIZE, trial(None), trial(1.0, duration_s=10))) == 15


def test_a_best_run_that_was_ended_early_counts_as_ten_times_as_long() -> None:
    early = replace(trial(1.0, duration_s=10), early="known within 1% after 15 iterations (90%)")
    assert Timeouts(dynamic=True).limit_s(study(Direction.MINIMIZE, early)) == 150


def test_the_tighter_of_two_limits_holds() -> None:
    best = study(Direction.MINIMIZE, trial(1.0, duration_s=10))
    assert Timeouts(dynamic=True, fixed_s=12).limit_s(best) == 12
    assert Timeouts(dynamic=True, fixed_s=20).limit_s(best) == 15


def test_a_short_run_is_not_ended_for_a_hiccup() -> None:
    assert Timeouts(dynamic=True).limit_s(study(Direction.MINIMIZE, trial(1.0, duration_s=0.1))) == 0.6


@pytest.mark.parametrize(
    "options",
    [
        {"fixed_s": 0},
        {"fixed_s": -1},
        {"margin": 0.9},
        {"margin": NAN},
        {"fixed_s": NAN},
        {"fixed_s": INF},
        {"margin": INF},
    ],
)
def test_a_limit_that_is_none_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        Timeouts(**options)  # type: ignore[arg-type]
