"""Numbers of logged objects."""

from __future__ import annotations

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.json_lines import JsonEvaluator
from zenith_tune.study.parameters import Direction


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('{"tokens_per_s": 5}', "tokens_per_s"),
        ('2026-11-16 INFO step {"tokens_per_s": 5.0} done', "tokens_per_s"),
        ('{"perf": {"tokens_per_s": "5"}}', "perf.tokens_per_s"),
        ('{"perf.tokens_per_s": 5}', "perf.tokens_per_s"),
        ("{'loss': 1.0, 'tokens_per_s': 5.0}", "tokens_per_s"),
    ],
)
def test_a_number_is_found_by_its_name(line: str, key: str) -> None:
    assert JsonEvaluator(key).evaluate(f"start\n{line}\nend {{\n", {}) == 5.0


def test_rates_are_maximized_and_times_minimized_unless_said_otherwise() -> None:
    assert JsonEvaluator("train/tokens_per_second").direction is Direction.MAXIMIZE
    assert JsonEvaluator("step_time_s").direction is Direction.MINIMIZE
    assert JsonEvaluator("tokens_per_s", direction=Direction.MINIMIZE).direction is Direction.MINIMIZE


def test_steps_that_are_off_at_the_ends_of_a_run_do_not_count_and_of_a_loss_the_last_does() -> None:
    log = "".join(f'{{"tokens_per_s": {rate}, "loss": {rate}}}\n' for rate in (30, 100, 101, 100, 99, 40))
    assert JsonEvaluator("tokens_per_s").evaluate(log, {}) == pytest.approx(100, rel=0.01)
    assert JsonEvaluator("loss").evaluate(log, {}) == 40


def test_a_median_leaves_the_others_and_numbers_an_iteration_show_progress() -> None:
    log = "".join(f'{{"tokens_per_s": {rate}}}\n' for rate in (1, 5, 5, 6, 5))
    evaluator = JsonEvaluator("tokens_per_s", selector="median")
    assert evaluator.evaluate(log, {}) == 5.0
    progress = evaluator.progress(log, {})
    assert progress is not None and progress.num_iterations == 5


@pytest.mark.parametrize(
    "log", ["", "{}", '{"tokens_per_s": "fast"}', '{"tokens_per_s": NaN}', '{"tokens_per_s": {}}', "{" * 5000]
)
def test_a_log_without_the_number_is_a_failed_trial(log: str) -> None:
    with pytest.raises(ValueError):
        JsonEvaluator("tokens_per_s").evaluate(log, {})


def test_a_name_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(UsageError):
        JsonEvaluator("")


def test_a_name_that_is_not_there_is_refused_with_those_that_are() -> None:
    log = 'INFO {"step": 1, "tokens_per_s": 512.0, "name": "run"}\n' * 3
    with pytest.raises(ValueError) as refused:
        JsonEvaluator("nix").evaluate(log, {})
    assert "tokens_per_s" in str(refused.value) and "name" not in str(refused.value).partition("log has")[2]


def test_a_torn_line_makes_no_warning_of_python() -> None:
    assert JsonEvaluator(key="loss").evaluate("{'loss': 1and 2}\n{'loss': 3.0}\n", {}) == 3.0


def test_a_number_is_read_from_an_object_behind_text() -> None:
    assert JsonEvaluator("tokens_per_s").evaluate('INFO {"step": 1, "tokens_per_s": 512.0}', {}) == 512.0


@pytest.mark.parametrize(
    ("key", "unit"),
    [
        ("tokens_per_s", "tokens/s"), ("speed.train_samples_per_second", "samples/s"), ("tokens/s/GPU", "tokens/s/GPU"),
        ("step_time_ms", "ms"), ("elapsed_s", "s"), ("TFLOPS", "TFLOP/s"), ("steps", ""), ("loss", ""),
    ],
)  # fmt: skip
def test_the_unit_is_what_the_name_states(key: str, unit: str) -> None:
    log = "".join(f'{{"{key}": {1 + index / 100}}}\n' for index in range(9))
    evaluator = JsonEvaluator(key)
    progress = evaluator.progress(log, {})
    assert evaluator.measure(log, {}).unit == unit and (progress is None or progress.unit == unit)
