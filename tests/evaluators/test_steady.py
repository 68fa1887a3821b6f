from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.evaluators.iteration_logs import log_of, noisy
from zenith_tune import Direction
from zenith_tune.evaluators.base import Measurement
from zenith_tune.evaluators.steady import long_run, num_warm_up, relative_drift, relative_spread, summarise
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator


def state(*seconds: float) -> Measurement:
    return summarise(seconds[num_warm_up(seconds) :], Direction.MINIMIZE)


def test_a_single_sample_is_kept_and_its_spread_is_unknown() -> None:
    assert state(2.0) == Measurement(value=2.0, spread=None, drift=None, num_samples=1)


def test_the_first_sample_is_dropped_even_if_it_looks_steady() -> None:
    assert state(1.0, 1.0, 1.0).num_samples == 2


def test_slow_leading_samples_are_warm_up() -> None:
    found = state(9.0, 5.0, 2.0, 1.0, 1.0, 1.0, 1.0)
    assert (found.value, found.num_samples) == (1.0, 4)


@pytest.mark.parametrize(
    ("seconds", "dropped"),
    [
        ([9, 1.019, 1, 1, 1], 1),
        ([9, 1.021, 1, 1, 1], 2),
        ([9, 1.05, 1.02, 1, 0.98, 1.01], 1),
        ([9, 1.09, 1, 1.5, 1, 0.5], 1),
        ([9, 1.11, 1, 1.5, 1, 0.5], 2),
        ([9, 1.04, 1], 1),
        ([9, 1.06, 1], 2),
        ([9, 1, 2, 1, 1, 1, 1], 1),
        ([9, 8, 7, 6, 5, 1, 1], 4),
        ([9, 8], 1),
        ([0.1, 1, 1, 1, 1], 1),
    ],
)
def test_warm_up_ends_at_the_first_sample_as_quick_as_later_ones_and_never_takes_more_than_half(
    seconds: Sequence[float], dropped: int
) -> None:
    assert num_warm_up(seconds) == dropped


def test_one_outlier_moves_neither_value_nor_spread() -> None:
    calm = state(9, 1.00, 1.02, 0.98, 1.01, 0.99)
    disturbed = state(9, 1.00, 1.02, 0.98, 1.01, 50.0)
    assert calm.value == 1.00
    assert disturbed.value == 1.01
    assert disturbed.spread == pytest.approx(1.4826 * 0.01 / 1.01)


def test_the_spread_is_the_scaled_median_deviation() -> None:
    assert relative_spread([8.0, 10.0, 11.0]) == pytest.approx(1.4826 * 1.0 / 10.0)
    assert relative_spread([5.0, 5.0]) == 0.0
    assert relative_spread([5.0]) is None


def test_a_single_stall_does_not_count_however_many_iterations_it_lasts() -> None:
    assert long_run([1.0] * 8 + [10.0]) == 1.0
    assert long_run([1.0] * 8 + [3.0, 10.0, 2.0] + [1.0] * 8) == 1.0


@pytest.mark.parametrize("direction", list(Direction))
def test_stalls_that_recur_count_with_their_share_of_a_long_run(direction: Direction) -> None:
    seconds = [10.0 if index % 12 == 7 else 1.0 for index in range(48)]
    is_rate = direction is Direction.MAXIMIZE
    values = [1 / each for each in seconds] if is_rate else seconds
    mean_s = sum(seconds) / len(seconds)
    assert long_run(values, direction) == pytest.approx(1 / mean_s if is_rate else mean_s)


@pytest.mark.parametrize("objective", ["step_time", "samples_per_s"])
def test_a_running_trial_shows_the_value_that_it_is_recorded_with_and_stalls_count_in_both(objective: str) -> None:
    steps = noisy(lambda index: 10.0 if index % 12 == 7 else 1.0, 48, 0.003)
    log, evaluator = log_of(steps), MegatronEvaluator(objective)
    measured, progress = evaluator.measure(log, {}), evaluator.progress(log, {})
    assert progress is not None and progress.latest == measured.value
    assert measured.step_s == pytest.approx(21 / 12, rel=0.01)
    assert measured.value == pytest.approx(21 / 12 if objective == "step_time" else 8 * 12 / 21, rel=0.01)


def test_a_run_of_two_paces_is_worth_their_mean_whichever_is_the_commoner() -> None:
    assert long_run([1.0, 1.0, 2.0] * 10) == pytest.approx(4 / 3)
    assert long_run([2.0, 2.0, 1.0] * 10) == pytest.approx(5 / 3)


def test_noise_of_many_percent_is_no_stall() -> None:
    values = [1.0, 1.2, 0.8, 1.1, 0.9, 1.3, 0.7, 1.15, 0.85, 1.0, 1.25]
    assert long_run(values) == 1.0


def test_a_rate_that_is_printed_as_zero_is_kept_out() -> None:
    assert long_run([0.3, 0.0, 0.3, 0.3], Direction.MAXIMIZE) == 0.3


def test_drift_is_how_far_successive_values_or_a_stall_are_off() -> None:
    quiet = [1.0, 1.002, 0.998] * 6
    assert (relative_drift(quiet) or 1) < 0.005
    assert relative_drift([*quiet, *(1.03 for _ in range(5))]) == pytest.approx(0.03)
    assert (relative_drift([*quiet, 2.0]) or 0) > 0.05
    assert relative_drift(quiet[:9]) is None


def test_a_measurement_is_the_median_of_steady_samples() -> None:
    found = summarise([0.42, 0.41, 0.43, 0.42], Direction.MINIMIZE, unit="s")
    assert found.value == 0.42
    assert found.spread == pytest.approx(0.018, abs=5e-4)
    assert found.num_samples == 4


def test_stalls_count_where_they_recur() -> None:
    assert long_run([1.0, 1.0, 9.0, 1.0, 1.0, 1.0]) == 1.0
    assert long_run([1.0, 1.0, 9.0, 1.0, 1.0, 9.0]) == 3.6666666666666665


def test_a_drift_is_seen_from_ten_values_on() -> None:
    assert relative_drift([1.0] * 10 + [1.1] * 10) == pytest.approx(0.048, abs=5e-4)
    assert relative_drift([1.0] * 9) is None
