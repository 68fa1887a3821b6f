"""What a study comes to: how much faster and how sure, how full, what it cost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from zenith_tune.study.budget import Budget
from zenith_tune.study.parameters import Direction
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.study.verdict import verdict_of
from zenith_tune.units import GIB


def trial(number: int, value: float | None, gib: float = 40.0, *, again: bool = False, **fields: Any) -> Trial:
    of = fields.pop("of", number)
    given = {"spread": 0.003, "num_samples": 9, "duration_s": 90.0, "unit": "tokens/s", **fields}
    outcome = Outcome.OOM if value is None else Outcome.OK
    return Trial(
        params={"x": number}, outcome=outcome, value=value, number=number, identity=f"run {of}",
        rerun_of=of if again else None,
        peak_memory_bytes=round(gib * GIB), **given,
    )  # fmt: skip


def study_with(*trials: Trial, base: float | None = 100.0, again: float | None = None) -> Study:
    study = Study(Direction.MAXIMIZE)
    if base is not None:
        study.add(trial(0, base, is_baseline=True, of=0))
    for each in trials:
        study.add(each)
    if again is not None:
        study.add(trial(99, again, is_baseline=True, again=True, of=0))
    return study


def test_a_nearly_full_best_names_the_safer_trial() -> None:
    study = study_with(trial(1, 143.0, 79.6), trial(18, 131.0, 58.0), trial(3, 120.0, 20.0))
    verdict = verdict_of(study, Budget(), num_gpus=8, capacity_bytes=80 * GIB)
    assert verdict.speedup == pytest.approx(1.43) and verdict.memory_share == pytest.approx(0.995)
    assert verdict.safer is not None and verdict.safer.number == 18
    assert verdict.safer.speedup == pytest.approx(1.31)
    assert all(part in verdict.sentence for part in ("1.43x", "99.5%", "trial 18", "1.31x", "58.0 GiB"))


def test_trials_that_ran_again_are_named_by_their_first_number() -> None:
    again = trial(5, 231.0, 58.0, again=True, of=18), trial(6, 230.9, 57.0, again=True, of=4)
    study = study_with(trial(1, 243.0, 79.6), trial(18, 231.0, 58.0), trial(4, 212.0, 57.0), *again)
    verdict = verdict_of(study, Budget(), num_gpus=8, capacity_bytes=80 * GIB)
    assert verdict.safer is not None and verdict.safer.number == 18
    study.limit_memory(70 * GIB)
    assert verdict_of(study, Budget(), num_gpus=8, capacity_bytes=80 * GIB).ties == (4,)


def test_a_best_with_room_names_none() -> None:
    verdict = verdict_of(study_with(trial(1, 143.0, 60.0)), Budget(), num_gpus=8, capacity_bytes=80 * GIB)
    assert verdict.safer is None and verdict.memory_share == pytest.approx(0.75)


def test_cost_and_when_it_pays() -> None:
    study = study_with(trial(1, 150.0), trial(2, 120.0), trial(3, None))
    verdict = verdict_of(study, Budget(price=2.5), num_gpus=8)
    assert verdict.gpu_hours == pytest.approx(4 * 90 * 8 / 3600)
    assert verdict.cost == pytest.approx(2.5 * verdict.gpu_hours)
    # 360 s of the whole job, at half a second saved for each second that the faster one runs.
    assert verdict.pays_after_hours == pytest.approx(720 / 3600)


def test_runs_that_differ_widen_the_interval() -> None:
    alike = study_with(trial(1, 143.0), trial(2, 143.1, again=True, of=1), again=100.0)
    apart = study_with(trial(1, 153.0), trial(2, 143.1, again=True, of=1), again=100.0)
    assert apart.gain_half_width is not None and alike.gain_half_width is not None
    assert apart.gain_half_width > 3 * alike.gain_half_width
    assert verdict_of(alike, Budget(), num_gpus=1).is_confirmed


def test_a_gain_many_times_the_noise_is_clear_and_a_smaller_one_is_to_be_confirmed() -> None:
    clear, doubtful = study_with(trial(1, 594.0)), study_with(trial(1, 130.0))
    found = verdict_of(clear, Budget(), num_gpus=1)
    assert found.is_clear and not found.is_confirmed
    assert not doubtful.is_clear and not verdict_of(doubtful, Budget(), num_gpus=1).is_confirmed
    doubtful.earlier_launches = doubtful.earlier_launches.seen([0.002, -0.003, 0.001])
    assert verdict_of(doubtful, Budget(), num_gpus=1).is_clear, "earlier studies have shown that the machine is quiet"


def test_a_gain_that_held_when_the_own_command_ran_again_is_confirmed_if_that_settles_it() -> None:
    settled, open_ = study_with(trial(1, 243.0), again=100.1), study_with(trial(1, 100.5), again=100.1)
    assert verdict_of(settled, Budget(), num_gpus=1).is_confirmed
    assert not verdict_of(open_, Budget(), num_gpus=1).is_confirmed


def test_a_gain_within_the_noise_is_not_claimed() -> None:
    study = study_with(trial(1, 100.4, spread=0.02, num_samples=4))
    verdict = verdict_of(study, Budget(), num_gpus=1)
    assert verdict.low is not None and verdict.low < 1 and "no gain" in verdict.sentence


def test_ties_are_named() -> None:
    verdict = verdict_of(study_with(trial(1, 143.0), trial(2, 142.9), trial(3, 120.0)), Budget(), num_gpus=1)
    assert verdict.ties == (2,)


@pytest.mark.parametrize("study", [study_with(), study_with(trial(1, None)), study_with(trial(1, 90.0))])
def test_without_a_gain_there_is_none(study: Study) -> None:
    assert (verdict_of(study, Budget(), num_gpus=1).speedup or 1.0) <= 1.0


def test_a_trial_beyond_the_memory_limit_is_not_the_best() -> None:
    study = Study(Direction.MAXIMIZE)
    study.memory_limit_bytes = 70 * GIB
    for each in (trial(1, 143.0, 79.6), trial(2, 131.0, 58.0)):
        study.add(each)
    assert study.best is not None and study.best.number == 2


def test_a_safer_trial_is_one_that_held_when_it_ran_again() -> None:
    study = study_with(trial(1, 150.0, 60.0), trial(2, 140.0, 79.0), trial(3, None, 60.0, again=True, of=1))
    verdict = verdict_of(study, Budget(), num_gpus=1, capacity_bytes=80 * GIB)
    assert study.best is not None and study.best.number == 2
    assert verdict.safer is None


@pytest.mark.parametrize(("base", "best"), [(0.0, 110.0), (-100.0, -50.0), (-5.0, 5.0)])
def test_values_without_a_ratio_claim_none(base: float, best: float) -> None:
    study = study_with(trial(1, best), base=base)
    verdict = verdict_of(study, Budget(), num_gpus=1)
    assert study.fastest is study.best and study.gain is None and verdict.speedup is None
    assert f"{base:g}" in verdict.sentence


def test_where_options_take_no_effect_nothing_is_claimed() -> None:
    study = study_with(trial(1, 150.0))
    study.is_sound = False
    assert verdict_of(study, Budget(), num_gpus=1).speedup is None and study.fastest is study.baseline


def test_an_own_command_over_the_memory_limit_is_not_the_best() -> None:
    study = study_with(trial(1, 90.0, 58.0), trial(2, 95.0, 79.0))
    study.limit_memory(60 * GIB)
    study.own_runs[:] = [trial(0, 100.0, 79.0, is_baseline=True, of=0)]
    verdict = verdict_of(study, Budget(), num_gpus=1)
    assert study.fastest is not None and study.fastest.number == 1
    assert verdict.speedup == pytest.approx(0.9) and "79.0 GiB" in verdict.sentence


def test_where_nothing_is_within_the_memory_limit_the_own_command_does_not_stay_the_best() -> None:
    for trials in ((), (trial(1, 90.0, 70.0),)):
        study = study_with(*trials)
        study.own_runs[:] = [trial(0, 100.0, 79.0, is_baseline=True, of=0)]
        study.limit_memory(60 * GIB)
        sentence = verdict_of(study, Budget(), num_gpus=1).sentence
        assert "79.0 GiB" in sentence and "60.0 GiB" in sentence


def test_a_study_in_which_nothing_ran_does_not_say_that_the_command_failed() -> None:
    assert "failed" not in verdict_of(study_with(base=None), Budget(), num_gpus=1).sentence
    study = study_with(base=None)
    study.add(Trial(params={}, outcome=Outcome.ERROR, is_baseline=True))
    assert "your command failed" in verdict_of(study, Budget(), num_gpus=1).sentence


@pytest.mark.parametrize("value", [200.0, 50.0])
@pytest.mark.parametrize(("unit", "word", "other"), [("", "better", "faster"), ("tokens/s", "faster", "better")])
def test_only_times_and_speeds_are_faster(value: float, unit: str, word: str, other: str) -> None:
    found = verdict_of(study_with(trial(1, value, unit=unit)), Budget(), num_gpus=1)
    assert word in found.sentence and other not in found.sentence


def test_within_the_noise_the_own_command_stays_and_nothing_has_changed() -> None:
    study = study_with(trial(1, 101.0, spread=0.02, num_samples=4))
    study.own_params = {"x": 0}
    verdict = verdict_of(study, Budget(), num_gpus=1)
    assert study.leader is study.best and study.fastest is study.baseline and verdict.changes == ()


@pytest.mark.parametrize("again", [30.0, None])
def test_where_runs_differ_too_much_the_verdict_has_what_was_seen_and_no_interval(again: float | None) -> None:
    study = study_with(trial(1, 130.0), again=again)
    study.earlier_launches = study.earlier_launches.seen([1.2, -1.5])
    headline = verdict_of(study, Budget(), num_gpus=1).headline
    assert "too noisy" in headline and " to 130" not in headline
    assert (f"{130 / 30:.2f}x" if again else "earlier studies") in headline


def test_a_gain_within_the_noise_of_earlier_studies_alone_says_so() -> None:
    study = study_with(trial(1, 104.0))
    study.earlier_launches = study.earlier_launches.seen([0.05, -0.04, 0.05, 0.03])
    assert "earlier studies" in verdict_of(study, Budget(), num_gpus=1).headline


def test_a_row_compares_with_the_own_command_before_it_and_stays_so() -> None:
    study = study_with(trial(1, 130.0), trial(2, 120.0), again=100.0)
    first = [study.row_gain(each) for each in study.trials]
    study.own_runs[0] = replace(study.own_runs[0], value=80.0)
    study.add(trial(100, 125.0, again=True, of=1))
    assert first == [pytest.approx(0.3), pytest.approx(0.2)]
    assert [study.row_gain(each) for each in study.trials] == [*map(pytest.approx, (0.625, 0.5, 0.25))]
    assert study.gain == pytest.approx(0.25)


def test_few_runs_that_agree_are_not_called_noisy() -> None:
    headline = verdict_of(study_with(trial(1, 103.0), again=102.0), Budget(), num_gpus=1).headline
    assert "too noisy" not in headline and "too few runs" in headline
