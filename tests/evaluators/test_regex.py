from __future__ import annotations

import random
from dataclasses import replace

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import EvaluatorRegistry
from zenith_tune.evaluators.early_stop import EarlyStop, Stakes
from zenith_tune.evaluators.regex import RegexEvaluator, _for_regex, usual_direction
from zenith_tune.study.parameters import Direction
from zenith_tune.study.precision import TO_90

LOG = "speed: 3.0\nspeed: 1.0 speed: 2.0\rspeed: 6.0\n"


def test_it_is_registered() -> None:
    assert EvaluatorRegistry.get("regex") is RegexEvaluator


@pytest.mark.parametrize(
    ("selector", "value"),
    [("last", 6.0), ("first", 3.0), ("min", 1.0), ("max", 6.0), ("mean", 3.0), ("median", 2.5)],
)
def test_each_selector_picks_its_value(selector: str, value: float) -> None:
    assert RegexEvaluator(r"speed: (\S+)", selector).evaluate(LOG, {}) == value


@pytest.mark.parametrize(
    ("numbers", "value"),
    [
        ([9.0, 2.0, 2.1, 2.0, 6.0], 2.05),  # a warm-up and one stall
        ([9.0, 2.0, 2.0, 2.0], 2.0),
        ([5.0], 5.0),
        ([10.0, 20.1, 30.3, 40.2], 40.2),  # a total
        ([0.0, 5.0, 5.2, 5.1], 5.15),  # a rate that the first step does not have
        ([-1.0, 3.0, 2.0], 2.0),
    ],
)
def test_steady_is_what_a_long_run_has_of_a_number_that_each_step_prints(numbers: list[float], value: float) -> None:
    log = "".join(f"v={number}\n" for number in numbers)
    evaluator = RegexEvaluator(r"v=(\S+)", "steady")
    assert evaluator.evaluate(log, {}) == pytest.approx(value)
    assert evaluator.measure(log, {}).value == pytest.approx(value)


def test_a_rate_that_the_first_steps_do_not_have_is_warm_up_and_one_that_is_lost_later_is_none() -> None:
    evaluator = RegexEvaluator(r"v=(\S+)", "steady", Direction.MAXIMIZE)
    assert evaluator.evaluate("v=n/a\nv=nan\nv=3\nv=3.1\nv=3\n", {}) == pytest.approx(3.05)
    with pytest.raises(ValueError, match="nan"):
        evaluator.evaluate("v=3\nv=nan\nv=3\n", {})


def test_the_error_of_a_steady_value_is_that_of_its_steps_and_a_total_has_none() -> None:
    steps = [9.0, 2.01, 2.0, 1.99, 2.0, 2.01, 5.0]
    log = "".join(f"v={step}\n" for step in steps)
    steady, last = (RegexEvaluator(r"v=(\S+)", selector).measure(log, {}) for selector in ("steady", "last"))
    assert steady.error is not None and last.error is not None and steady.error < last.error / 3
    total = RegexEvaluator(r"v=(\S+)", "steady").measure("v=1\nv=2.1\nv=3.3\nv=4.1\n", {})
    assert (total.value, total.error) == (4.1, None)


@pytest.mark.parametrize(
    ("pattern", "direction"),
    [
        (r"tokens/s: (\S+)", Direction.MAXIMIZE),
        (r"samples per second (\S+)", Direction.MAXIMIZE),
        (r"\((\d+) tok\)/sec", Direction.MAXIMIZE),
        (r"throughput per GPU \(TFLOP/s/GPU\): (\S+)", Direction.MAXIMIZE),
        (r"train_speed\(s/it\): (\S+)", Direction.MINIMIZE),
        (r"([\d.]+) s/step", Direction.MINIMIZE),
        (r"elapsed time per iteration \(ms\): (\S+)", Direction.MINIMIZE),
        (r"seconds per sample: (\S+)", Direction.MINIMIZE),
    ],
)
def test_more_of_a_rate_is_better_and_less_of_a_time(pattern: str, direction: Direction) -> None:
    assert usual_direction(pattern) is direction


def test_the_last_value_is_the_default_and_smaller_is_better() -> None:
    evaluator = RegexEvaluator(r"speed: (\S+)")
    assert evaluator.evaluate(LOG, {}) == 6.0
    assert evaluator.direction is Direction.MINIMIZE


def test_the_direction_is_the_users() -> None:
    assert RegexEvaluator("(.)", direction=Direction.MAXIMIZE).direction is Direction.MAXIMIZE


@pytest.mark.parametrize(
    ("text", "value"), [("1,234.5", 1234.5), ("-2.5e-3", -0.0025), (".5", 0.5), ("12,345,678", 12345678.0), ("+7", 7.0)]
)
def test_numbers_are_read_as_programs_print_them(text: str, value: float) -> None:
    assert RegexEvaluator(r"v=(\S+)").evaluate(f"v={text}", {}) == value


@pytest.mark.parametrize("text", ["fast", "1,5", "1_000", "0x10", "1.2.3", "9" * 100])
def test_a_match_that_is_no_number_is_quoted(text: str) -> None:
    with pytest.raises(ValueError, match=r"'v=\(\\\\S\+\)' found '.+'") as caught:
        RegexEvaluator(r"v=(\S+)").evaluate(f"v={text}", {})
    assert text[:60] in str(caught.value)


@pytest.mark.parametrize("text", ["nan", "NaN", "inf", "-Infinity"])
def test_nan_and_infinity_are_no_values(text: str) -> None:
    with pytest.raises(ValueError, match=r"nan|inf"):
        RegexEvaluator(r"v=(\S+)").evaluate(f"v={text}", {})


def test_a_nan_before_the_last_value_does_not_matter_to_the_last_but_to_the_mean() -> None:
    log = "v=nan\nv=2\n"
    assert RegexEvaluator(r"v=(\S+)").evaluate(log, {}) == 2
    with pytest.raises(ValueError, match="nan"):
        RegexEvaluator(r"v=(\S+)", "mean").evaluate(log, {})


@pytest.mark.parametrize("selector", ["last", "first", "max"])
def test_a_pattern_that_finds_nothing_is_named(selector: str) -> None:
    with pytest.raises(ValueError, match=r"'speed: \(\.\)' "):
        RegexEvaluator("speed: (.)", selector).evaluate("nothing here", {})


def test_an_optional_group_that_took_no_part_is_no_value() -> None:
    assert RegexEvaluator(r"v(?:=(\d+))?").evaluate("v=1\nv\n", {}) == 1


@pytest.mark.parametrize(("pattern", "count"), [("no group", 0), ("(a)(b)", 2), ("(?:a)", 0)])
def test_a_pattern_must_have_exactly_one_group(pattern: str, count: int) -> None:
    with pytest.raises(UsageError, match="one group") as caught:
        RegexEvaluator(pattern)
    assert f"{pattern!r} has {count}" in str(caught.value)


def test_an_invalid_pattern_is_bad_input() -> None:
    with pytest.raises(UsageError, match=r"'\(' is not: missing \)"):
        RegexEvaluator("(")


def test_an_unknown_selector_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"'median'\? .*first, last, max, mean, median, min, steady"):
        RegexEvaluator("(.)", "medain")


def test_a_match_stays_within_its_line() -> None:
    with pytest.raises(ValueError, match="log"):
        RegexEvaluator(r"speed:\s+(\d+)").evaluate("speed:\n5\n", {})
    assert RegexEvaluator(r"^(\d+)$").evaluate("x1\n2\n3x\n", {}) == 2


def test_a_backtracking_pattern_ends_on_a_long_line() -> None:
    with pytest.raises(ValueError, match="log"):
        RegexEvaluator(r"x*y(\d)").evaluate("x" * 4_000_000, {})


def test_studies_with_different_patterns_are_not_comparable() -> None:
    descriptions = {
        RegexEvaluator("a(.)").describe(),
        RegexEvaluator("b(.)").describe(),
        RegexEvaluator("a(.)", "max").describe(),
        RegexEvaluator("a(.)", direction=Direction.MAXIMIZE).describe(),
    }
    assert len(descriptions) == 4


STEPS = [9.0, 2.01, 2.0, 1.99, 2.0, 2.01, 1.99]


def steps_log(steps: list[float] | None = None) -> str:
    return "".join(f"step {number} time: {step}\n" for number, step in enumerate(steps or STEPS))


@pytest.mark.parametrize("selector", ["last", "median"])
def test_numbers_that_are_printed_once_an_iteration_show_progress_without_their_warm_up(selector: str) -> None:
    evaluator = RegexEvaluator(r"time: (\S+)", selector)
    progress = evaluator.progress(steps_log() + "step 8 time: 1.", {})
    assert progress is not None and evaluator.shows_progress
    assert progress.values == STEPS[1:] and progress.num_iterations == len(STEPS)
    assert progress.value == evaluator.evaluate(steps_log(), {})


def test_of_a_rate_the_slow_numbers_are_the_small_ones() -> None:
    evaluator = RegexEvaluator(r"time: (\S+)", "median", Direction.MAXIMIZE)
    progress = evaluator.progress(steps_log([9.0, 1.0, 2.0, 2.01, 1.99, 2.0]), {})
    assert progress is not None and progress.values == [2.0, 2.01, 1.99, 2.0]


@pytest.mark.parametrize("selector", ["first", "min", "max", "mean"])
def test_a_value_that_more_iterations_would_move_runs_to_its_end(selector: str) -> None:
    evaluator = RegexEvaluator(r"time: (\S+)", selector)
    assert not evaluator.shows_progress and evaluator.progress(steps_log(), {}) is None


@pytest.mark.parametrize("pattern", [r"lm loss: (\S+)", r"val_acc=(\S+)", r"Perplexity (\S+)"])
def test_a_quality_that_training_improves_runs_to_its_end(pattern: str) -> None:
    assert not RegexEvaluator(pattern).shows_progress


@pytest.mark.parametrize("log", ["", "time: 2.0\n", "time: 2.0\ntime: nan\n", "time: 2.0\ntime: -1\n"])
def test_what_is_printed_once_or_is_no_speed_tells_nothing_before_the_end(log: str) -> None:
    assert RegexEvaluator(r"time: (\S+)").progress(log, {}) is None


def test_the_spread_is_that_of_the_steady_numbers() -> None:
    measured = RegexEvaluator(r"time: (\S+)").measure(steps_log(), {})
    assert measured.value == 1.99 and measured.num_samples == len(STEPS) - 1
    assert measured.spread == pytest.approx(1.4826 * 0.01 / 2)
    assert RegexEvaluator(r"time: (\S+)").measure("time: 2.0\n", {}).spread is None


def test_a_median_that_still_holds_its_warm_up_is_waited_for() -> None:
    evaluator = RegexEvaluator(r"time: (\S+)", "median")
    for num_steady in (4, 40):
        steps = [9.0, 8.0, 7.0, 6.0, *[2.0, 2.002, 1.998, 2.001] * (num_steady // 4)]
        progress = evaluator.progress(steps_log(steps), {})
        assert progress is not None
        found = EarlyStop().judge(replace(progress, next_s=1.0), Direction.MINIMIZE, Stakes(drift=0.0))
        assert found.ends == (num_steady == 40)


def test_a_value_that_is_one_sample_is_known_no_better_than_one() -> None:
    rng = random.Random(4)
    num_held = {"last": 0, "median": 0}
    for _ in range(200):
        log = steps_log([9.0, *(2 * (1 + 0.08 * rng.gauss(0, 1)) for _ in range(60))])
        for selector in num_held:
            found = RegexEvaluator(r"time: (\S+)", selector).measure(log, {})
            assert found.error is not None
            num_held[selector] += abs(found.value / 2 - 1) <= TO_90 * found.error
    assert num_held["median"] >= 170 and num_held["last"] >= 170, num_held


def test_a_pattern_of_re_is_written_for_regex() -> None:
    assert str(_for_regex(r"a{e} b{2} [[:x] (\d+)")) == "a\\{e} b{2} [\\[:x] (\\d+)"
