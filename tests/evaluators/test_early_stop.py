from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.data_folder import measured_data
from tests.evaluators.iteration_logs import WARM_UP_S, first_reason, log_of, noisy
from tests.thoroughness import few_quick
from zenith_tune import Direction, Outcome, Trial
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.early_stop import LONG_S, LONG_SAMPLES, EarlyStop, Stakes, saved_share, study_drift
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.study.budget import Training
from zenith_tune.study.trial import Prediction

SEEDS = few_quick(range(6), 2)
STEADY = Stakes(drift=0.0)
"""A study whose runs do not drift."""


def run_of(value: float, error: float = 0.003, unit: str = "s") -> Trial:
    return Trial(params={}, outcome=Outcome.OK, value=value, error=error, unit=unit, step_s=value)


def num_steady(step_s: float, noise: float, seed: int, stakes: Stakes = STEADY) -> int:
    """Return after how many steady iterations a run ends."""
    steps = [6 * step_s, 2 * step_s, *noisy(lambda _: step_s, 200, noise, seed)[len(WARM_UP_S) :]]
    ended = first_reason(log_of(steps), stakes=stakes)
    return 200 if ended is None else ended[0] - 2


SLOW_OBJECTIVES = [pytest.param(each, marks=pytest.mark.slow) for each in ("throughput", "samples_per_s")]


@pytest.mark.parametrize("objective", ["step_time", *SLOW_OBJECTIVES])
def test_a_measured_run_ends_with_the_value_of_the_whole_run_in_its_interval(objective: str) -> None:
    log = (measured_data() / "logs" / "megatron_steady60.log").read_text()
    evaluator = MegatronEvaluator(objective)
    ended = first_reason(log, evaluator, stakes=Stakes())
    assert ended is not None and ended[0] <= 35 and ended[1].startswith("known within ")
    then, whole = evaluator.measure(ended[2], {}), evaluator.measure(log, {})
    assert then.error is not None and then.value == pytest.approx(whole.value, rel=1.645 * then.error)


@pytest.mark.parametrize("seed", SEEDS)
def test_long_iterations_that_agree_need_two_whatever_the_study_knows(seed: int) -> None:
    assert num_steady(16.0, 0.0003, seed, Stakes()) == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_command_far_slower_than_what_is_predicted_needs_two_iterations_however_noisy(seed: int) -> None:
    predicted = Stakes(predicted=Prediction(step_s=4.1, error=0.15, by="planner"))
    assert num_steady(16.0, 0.08, seed, predicted) == 2


def test_the_same_noise_is_looked_at_for_longer_where_the_choice_depends_on_it() -> None:
    alone, close = STEADY, replace(STEADY, best=run_of(4.0))

    def mean(stakes: Stakes) -> float:
        return sum(num_steady(4.0, 0.03, seed, stakes) for seed in range(12)) / 12

    assert mean(close) > 1.5 * mean(alone)


def test_longer_iterations_are_fewer_and_a_longer_training_is_worth_more() -> None:
    def mean(step_s: float, hours: float) -> float:
        stakes = replace(STEADY, training=Training(hours=hours))
        return sum(num_steady(step_s, 0.05, seed, stakes) for seed in range(12)) / 12

    assert mean(0.2, 8.0) > mean(2.0, 8.0) > mean(20.0, 8.0)
    assert mean(20.0, 1000.0) > mean(20.0, 8.0) >= mean(20.0, 0.1) == 2


@pytest.mark.parametrize("drift", [None, 0.02], ids=["not known", "drifts"])
@pytest.mark.parametrize(("step_s", "least"), [(0.1, LONG_SAMPLES), (1.0, 10), (4.0, 3), (16.0, 2)])
def test_a_drift_is_looked_for_in_seconds_and_in_samples_whichever_are_over_first(
    step_s: float, least: int, drift: float | None
) -> None:
    assert least in (LONG_SAMPLES, math.ceil(LONG_S / step_s), 2)
    found = [num_steady(step_s, 0.0003, seed, Stakes(drift=drift)) for seed in range(7)]
    assert min(found) == least and sorted(found)[3] <= least + 1  # one in five seems to have a trend
    assert num_steady(step_s, 0.0003, 0, STEADY) < LONG_SAMPLES / 2


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("decay", [5.0, 10.0, 20.0])
def test_a_slow_start_is_in_the_interval_that_is_stated(decay: float, seed: int) -> None:
    steps = noisy(lambda index: 0.4 * (1 + math.exp(-index / decay)), 200, 0.005, seed)
    ended = first_reason(log_of(steps), stakes=Stakes())
    assert ended is not None
    measured = MegatronEvaluator("step_time").measure(ended[2], {})
    assert measured.error is not None and abs(measured.value / 0.4 - 1) < 2.5 * measured.error


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_start_that_ends_at_once_is_separated_from_the_steady_state(seed: int) -> None:
    steps = noisy(lambda index: 0.8 if index < 3 else 0.4, 60, 0.005, seed)
    ended = first_reason(log_of(steps), stakes=Stakes())
    assert ended is not None
    assert MegatronEvaluator("step_time").evaluate(ended[2], {}) == pytest.approx(0.4, rel=0.01)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("period", "slowness"), [(5, 2.0), (10, 3.0), (10, 1.5)])
def test_stalls_that_recur_are_in_the_value_or_in_its_interval(period: int, slowness: float, seed: int) -> None:
    steps = noisy(lambda index: 0.4 * (slowness if index % period == period - 1 else 1), 300, 0.005, seed)
    ended = first_reason(log_of(steps), stakes=Stakes())
    assert ended is not None
    measured = MegatronEvaluator("step_time").measure(ended[2], {})
    long_run_s = 0.4 * (1 + (slowness - 1) / period)
    assert measured.error is not None
    assert abs(math.log(measured.value / long_run_s)) < max(0.02, 2 * measured.error)


def test_an_error_that_all_iterations_share_does_not_shrink_with_their_number() -> None:
    progress = Progress(values=[1.0, 1.001] * 50, num_iterations=100, common_error=0.04)
    assert progress.error == pytest.approx(0.04, rel=0.01)


@pytest.mark.parametrize("objective", ["step_time", "samples_per_s"])
def test_a_trial_twice_as_slow_as_the_best_is_behind(objective: str) -> None:
    evaluator = MegatronEvaluator(objective)
    best = evaluator.measure(log_of([4.0] * 10), {})
    stakes = replace(STEADY, best=run_of(best.value, 0.001, best.unit))
    logs = [log_of([24.0, *noisy(lambda _: 8.0, 60, 0.003, seed)[len(WARM_UP_S) :]]) for seed in range(10)]
    ended = [first_reason(log, evaluator, stakes=stakes) for log in logs]
    assert all(end is not None and end[1].startswith("behind the best by ") for end in ended)
    assert max(end[0] - 1 for end in ended if end is not None) <= 3


@pytest.mark.slow
def test_a_trial_as_good_as_the_best_is_hardly_ever_called_behind() -> None:
    stakes = replace(STEADY, best=run_of(0.4, 0.001))
    ended = [first_reason(log_of(noisy(lambda _: 0.4, 100, 0.05, seed)), stakes=stakes) for seed in range(40)]
    assert sum(end is not None and end[1].startswith("behind") for end in ended) <= 1


def test_a_warm_up_of_some_seconds_is_not_taken_for_behind() -> None:
    stakes = replace(STEADY, best=run_of(0.2, 0.001))
    steps = noisy(lambda index: 0.2 * (1 + math.exp(-index / 5)), 200, 0.003)
    ended = first_reason(log_of(steps), stakes=stakes)
    assert ended is not None and ended[1].startswith("known")


def test_a_best_value_in_another_unit_is_no_rival() -> None:
    progress = Progress(values=[4.0, 4.01], num_iterations=3, step_s=4.0, unit="s")
    assert replace(STEADY, best=run_of(1.0, unit="tokens/s")).gaps(progress, Direction.MINIMIZE) == []


def test_a_repeated_run_is_no_longer_than_the_first() -> None:
    log = log_of(noisy(lambda _: 0.4, 60, 0.3))
    ended = first_reason(log, stakes=Stakes(max_samples=5))
    assert ended is not None and ended[0] <= 5 + len(WARM_UP_S) + 1


def test_the_precision_asked_for_is_kept() -> None:
    log = log_of(noisy(lambda _: 0.4, 60, 0.02))
    coarse = first_reason(log, early_stop=EarlyStop(precision=0.05))
    assert coarse is not None
    measured = MegatronEvaluator("step_time").measure(coarse[2], {})
    assert measured.error is not None and 1.645 * measured.error <= 0.05
    assert first_reason(log, early_stop=EarlyStop(precision=0.001)) is None


def test_a_run_that_goes_on_says_what_is_known_and_for_about_how_long() -> None:
    progress = Progress(values=[4.0, 4.5, 3.6], num_iterations=4, step_s=4.0)
    found = EarlyStop().judge(progress, Direction.MINIMIZE, replace(STEADY, best=run_of(4.0)))
    assert not found.ends and found.left_s is not None and found.left_s > 4.0
    assert found.reason.startswith("known within ")


@pytest.mark.parametrize("values", [[], [4.0], [0.0] * 30])
def test_too_few_values_and_values_that_are_no_speed_end_nothing(values: list[float]) -> None:
    progress = Progress(values=values, num_iterations=30, step_s=4.0)
    assert not EarlyStop().judge(progress, Direction.MINIMIZE, STEADY).ends


def test_less_variance_saves_most_where_two_are_alike_and_nothing_far_apart() -> None:
    near, apart, far = (saved_share(0.01, [(gap, 0.01)], 0.01**2) for gap in (0.0, 0.02, 0.5))
    assert near > apart > 1e3 * far
    # Between two normal values alike, the expected loss is the standard deviation of their difference over sqrt(2 pi).
    loss = [math.hypot(error, 0.01) / math.sqrt(2 * math.pi) for error in (0.01, 0.0099)]
    known = saved_share(0.01, [(0.0, 0.01)], 0.01**2 - 0.0099**2)
    to_come = saved_share(0.01, [], 0.01**2 - 0.0099**2)
    assert known - to_come / 2 == pytest.approx(loss[0] - loss[1], rel=0.01)


def test_the_drift_of_a_study_is_the_largest_that_a_trial_showed() -> None:
    trials = [replace(run_of(1.0), drift=drift) for drift in (0.004, None, 0.02)]
    assert study_drift([]) is study_drift(trials[1:2]) is None
    assert study_drift(trials) == 0.02


@pytest.mark.parametrize("precision", [0.0, -0.01, math.nan, 0.6])
def test_a_precision_that_is_none_is_refused(precision: float) -> None:
    with pytest.raises(UsageError):
        EarlyStop(precision=precision)


def test_a_steady_run_is_known_after_a_few_iterations() -> None:
    steady = Progress(values=[100.0, 100.2, 99.9], num_iterations=4, step_s=16.0)
    assert EarlyStop().judge(steady, Direction.MINIMIZE, Stakes()).reason == "known within 0.41% after 4 iterations"
