from __future__ import annotations

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.regex import RegexEvaluator
from zenith_tune.registry import EvaluatorRegistry
from zenith_tune.study.parameters import Direction

LOG = "speed: 3.0\nspeed: 1.0 speed: 2.0\rspeed: 6.0\n"


def test_it_is_registered() -> None:
    assert EvaluatorRegistry.get("regex") is RegexEvaluator


@pytest.mark.parametrize(
    ("selector", "value"),
    [("last", 6.0), ("first", 3.0), ("min", 1.0), ("max", 6.0), ("mean", 3.0), ("median", 2.5)],
)
def test_each_selector_picks_its_value(selector: str, value: float) -> None:
    assert RegexEvaluator(r"speed: (\S+)", selector).evaluate(LOG, {}) == value


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
    with pytest.raises(UsageError, match=r"'median'\? .*first, last, max, mean, median, min"):
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
