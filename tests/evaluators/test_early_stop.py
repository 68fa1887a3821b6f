from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from tests.data_folder import measured_data
from tests.evaluators.iteration_logs import WARM_UP_S, first_reason, log_of, noisy
from tests.thoroughness import few_quick
from zenith_tune import Direction, Outcome, Trial
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.early_stop import DEFAULT_NOISE, EarlyStop, study_drift, study_noise
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

SEEDS = few_quick(range(6), 2)


@pytest.mark.parametrize("objective", ["throughput", "step_time", "samples_per_s"])
def test_a_measured_run_is_known_within_one_percent_after_at_most_fifteen_iterations(objective: str) -> None:
    log = (measured_data() / "logs" / "megatron_steady60.log").read_text()
    evaluator = MegatronEvaluator(objective)
    ended = first_reason(log, evaluator)
    assert ended is not None
    num_iterations, reason, log_then = ended
    assert num_iterations <= 15
    assert re.match(rf"known within 1% .*\b{num_iterations} iterations \(90%\)$", reason)
    assert evaluator.evaluate(log_then, {}) == pytest.approx(evaluator.evaluate(log, {}), rel=0.01)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_quiet_run_is_known_after_a_few_steady_iterations_and_no_later_in_a_quiet_study(seed: int) -> None:
    log = log_of(noisy(lambda _: 0.4, 60, 0.001, seed))
    first, later = first_reason(log), first_reason(log, noise=0.003)
    assert first is not None and later is not None
    assert later[0] <= first[0] <= len(WARM_UP_S) + 12


def test_half_of_the_runs_with_noise_as_in_the_study_are_known_after_five_steady_iterations() -> None:
    ended = [first_reason(log_of(noisy(lambda _: 0.4, 60, 0.003, seed)), noise=0.003) for seed in range(30)]
    assert sorted(end[0] - len(WARM_UP_S) if end else 60 for end in ended)[15] <= 5


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("percent_per_iteration", "noise"), [(0.1, 0.002), (0.3, 0.005), (1.0, 0.02), (-0.5, 0.005)])
def test_a_run_that_drifts_is_ended_at_most_before_the_drift_has_moved_its_value(
    percent_per_iteration: float, noise: float, seed: int
) -> None:
    steps = noisy(lambda index: 0.4 * (1 + percent_per_iteration / 100 * index), 60, noise, seed)
    ended = first_reason(log_of(steps))
    assert ended is None or (ended[0] - len(WARM_UP_S) - 1) / 2 * abs(percent_per_iteration) <= 1


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drift_too_small_to_matter_does_not_hold_a_run_up(seed: int) -> None:
    steps = noisy(lambda index: 0.4 * (1 + 1e-5 * index), 60, 0.001, seed)
    assert first_reason(log_of(steps)) is not None


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("decay", [5.0, 10.0, 20.0])
def test_a_slow_start_of_tens_of_iterations_is_waited_for(decay: float, seed: int) -> None:
    steps = noisy(lambda index: 0.4 * (1 + math.exp(-index / decay)), 200, 0.005, seed)
    ended = first_reason(log_of(steps))
    # After three times the decay the slow start is still 5%, which no value within 1% can hold.
    if ended is not None:
        assert ended[0] > 3 * decay
        assert MegatronEvaluator("step_time").evaluate(ended[2], {}) == pytest.approx(0.4, rel=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_start_that_ends_at_once_is_separated_from_the_steady_state(seed: int) -> None:
    steps = noisy(lambda index: 0.8 if index < 3 else 0.4, 60, 0.005, seed)
    ended = first_reason(log_of(steps))
    assert ended is not None
    assert MegatronEvaluator("step_time").evaluate(ended[2], {}) == pytest.approx(0.4, rel=0.01)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("period", "slowness"), [(5, 2.0), (10, 3.0), (10, 1.5)])
def test_stalls_that_recur_are_waited_out_and_count_in_the_value(period: int, slowness: float, seed: int) -> None:
    steps = noisy(lambda index: 0.4 * (slowness if index % period == period - 1 else 1), 300, 0.005, seed)
    ended = first_reason(log_of(steps), drift=None)
    assert ended is not None
    # Until one stall more or less moves the mean by at most 1%.
    assert ended[0] > (slowness - 1) * 90 > 3 * period
    long_run_s = 0.4 * (1 + (slowness - 1) / period)
    assert MegatronEvaluator("step_time").evaluate(ended[2], {}) == pytest.approx(long_run_s, rel=0.01)


@pytest.mark.parametrize("drift", [None, 0.02], ids=["not known", "drifts"])
def test_where_runs_may_drift_a_value_is_known_after_twenty_steady_iterations_at_the_earliest(
    drift: float | None,
) -> None:
    log = log_of(noisy(lambda _: 0.4, 60, 0.001))
    ended = first_reason(log, noise=0.001, drift=drift)
    assert ended is not None and ended[0] - len(WARM_UP_S) >= 20
    behind = first_reason(log, best=0.2, noise=0.001, drift=drift)
    assert behind is not None and behind[1].startswith("behind") and behind[0] - len(WARM_UP_S) <= 3


def test_a_value_that_leaves_out_stalls_that_recur_is_not_known() -> None:
    steady = [1.5 if index % 10 == 5 else 1.0 for index in range(100)]
    mean, middle = (Progress(values=steady, value=value, num_iterations=101) for value in (1.05, 1.0))
    assert EarlyStop().judge(mean, None, Direction.MINIMIZE, noise=0.002) is not None
    assert EarlyStop().judge(middle, None, Direction.MINIMIZE, noise=0.002) is None


@pytest.mark.parametrize("objective", ["step_time", "samples_per_s"])
def test_a_stall_counts_as_much_for_a_rate_as_for_a_time(objective: str) -> None:
    steps = noisy(lambda index: 0.4 * (3 if index == 5 else 1), 100, 0.002)
    assert first_reason(log_of(steps), MegatronEvaluator(objective)) is None


def test_heavy_noise_is_waited_for() -> None:
    ended = [first_reason(log_of(noisy(lambda _: 0.4, 60, 0.15, seed))) for seed in range(20)]
    assert ended == [None] * 20


def test_more_noise_takes_more_iterations() -> None:
    def typical(noise: float) -> float:
        ended = (first_reason(log_of(noisy(lambda _: 0.4, 300, noise, seed))) for seed in range(15))
        return sorted(end[0] if end else math.inf for end in ended)[7]

    assert typical(0.005) < typical(0.02) < typical(0.03)


@pytest.mark.parametrize("objective", ["step_time", "samples_per_s"])
def test_a_trial_that_is_surely_behind_the_best_is_ended_before_its_value_is_known(objective: str) -> None:
    evaluator = MegatronEvaluator(objective)
    log = log_of(noisy(lambda _: 0.8, 60, 0.05, 3))
    best = evaluator.evaluate(log_of([0.5] * 10), {})
    ended = first_reason(log, evaluator, best)
    assert first_reason(log, evaluator) is None
    assert ended is not None and ended[0] < 40
    assert ended[1].startswith("behind ") and ended[1].endswith(f" {ended[0]} iterations (99.9%)")


@pytest.mark.parametrize("objective", ["step_time", "samples_per_s"])
def test_a_trial_twice_as_slow_as_the_best_is_behind_after_three_steady_iterations(objective: str) -> None:
    evaluator = MegatronEvaluator(objective)
    best = evaluator.evaluate(log_of([0.4] * 10), {})
    logs = [log_of(noisy(lambda _: 0.8, 60, 0.003, seed)) for seed in range(30)]
    ended = sorted(end[0] if (end := first_reason(log, evaluator, best, noise=0.003)) else 60 for log in logs)
    assert ended[20] - len(WARM_UP_S) <= 3 and ended[-1] - len(WARM_UP_S) <= 10


def test_a_trial_as_good_as_the_best_is_never_called_behind() -> None:
    for seed in range(15):
        ended = first_reason(log_of(noisy(lambda _: 0.4, 100, 0.05, seed)), best=0.4)
        assert ended is None or ended[1].startswith("known")


@pytest.mark.parametrize("objective", ["step_time", "samples_per_s"])
def test_a_trial_that_is_behind_but_getting_better_continues(objective: str) -> None:
    evaluator = MegatronEvaluator(objective)
    steps = noisy(lambda index: 0.8 * 0.99**index, 60, 0.02)
    assert first_reason(log_of(steps), evaluator, best=evaluator.evaluate(log_of([0.4] * 10), {})) is None


def test_a_trial_that_gets_worse_is_behind_all_the_same() -> None:
    ended = first_reason(log_of(noisy(lambda index: 0.8 * 1.01**index, 60, 0.02)), best=0.4)
    assert ended is not None and ended[1].startswith("behind")


def test_the_precision_asked_for_is_kept_and_reported() -> None:
    log = log_of(noisy(lambda _: 0.4, 60, 0.02))
    coarse = first_reason(log, early_stop=EarlyStop(precision=0.05))
    assert coarse is not None and re.match(rf"known within 5% .*\b{coarse[0]} iterations \(90%\)$", coarse[1])
    assert first_reason(log, early_stop=EarlyStop(precision=0.001)) is None


def test_values_that_are_no_speed_are_never_judged() -> None:
    progress = Progress(values=[0.0] * 30, num_iterations=30)
    assert EarlyStop().judge(progress, 1.0, Direction.MINIMIZE) is None


def test_a_value_that_is_not_the_middle_of_the_iterations_is_waited_for() -> None:
    steady = [100.0, 100.1, 99.9, 100.2, 99.8, 100.0]
    near, far = (Progress(values=steady, value=value, num_iterations=8) for value in (100.2, 103.0))
    assert EarlyStop().judge(near, None, Direction.MINIMIZE, noise=0.002) is not None
    assert EarlyStop().judge(far, None, Direction.MINIMIZE, noise=0.002) is None


def seen(spread: float | None, num_samples: int, num_runs: int = 1) -> Trial:
    return Trial(params={}, outcome=Outcome.OK, value=1.0, spread=spread, num_samples=num_samples, num_runs=num_runs)


def test_the_noise_of_a_study_is_what_most_of_its_samples_showed() -> None:
    quiet, noisy_one = seen(0.003, 20), seen(0.08, 12)
    assert study_noise([]) == DEFAULT_NOISE
    assert study_noise([seen(0.003, 2)]) == DEFAULT_NOISE, "two samples say less than the default"
    assert study_noise([quiet, noisy_one]) == pytest.approx(0.003, rel=0.1)
    assert study_noise([quiet, noisy_one, noisy_one, noisy_one]) == pytest.approx(0.08, rel=0.1)


def test_the_drift_of_a_study_is_the_largest_that_a_trial_showed() -> None:
    trials = [replace(seen(0.003, 20), drift=drift) for drift in (0.004, None, 0.02)]
    assert study_drift([]) is study_drift(trials[1:2]) is None
    assert study_drift(trials) == 0.02


def test_failed_trials_and_the_spread_between_repeats_are_no_noise_of_iterations() -> None:
    failed = Trial(params={}, outcome=Outcome.OOM)
    assert study_noise([failed, seen(None, 20), seen(0.0001, 40, num_runs=4)]) == DEFAULT_NOISE


@pytest.mark.parametrize(
    "options",
    [
        {"precision": 0.0},
        {"precision": -0.01},
        {"precision": math.nan},
        {"precision": 0.6},
        {"confidence": 1.0},
        {"sure": 0.2},
    ],
)
def test_a_setting_that_is_none_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        EarlyStop(**options)
