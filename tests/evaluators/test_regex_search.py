from __future__ import annotations

import re

import pytest
import regex

from zenith_tune.evaluators import regex as evaluator
from zenith_tune.evaluators.regex import RegexEvaluator, _for_regex


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        ("v ((?:a|aa)+)!", "v " + "a" * 60 + " !"),
        ("(?:a|a)*(b)!", "a" * 60 + " b!"),
        ("a*a*a*(b)", "a" * 60_000 + " b"),
    ],
)
def test_a_pattern_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch, pattern: str, line: str) -> None:
    monkeypatch.setattr(evaluator, "MOST_CPU_S", 0.2)
    with pytest.raises(ValueError, match=r"0\.2 s"):
        RegexEvaluator(pattern).evaluate(f"loss 1\n{line}\n", {})


@pytest.mark.parametrize(("selector", "value"), [("first", 1), ("last", 3), ("mean", 2)])
def test_what_is_asked_for_is_found_in_order(selector: str, value: float) -> None:
    assert RegexEvaluator(r"v=(\d)", selector).evaluate("v=1 v=2\nnothing\nv=3", {}) == value


def test_letters_of_any_kind_are_searched() -> None:
    assert RegexEvaluator("\udcff→\ud800ß(\\d)").evaluate("\udcff→\ud800ß7\u2028日", {}) == 7


def test_a_pattern_of_words_and_blanks_ends_on_a_long_line() -> None:
    assert RegexEvaluator(r"(?:\S+\s+)+loss (\S+)").evaluate("word " * 8000 + "loss 2.5", {}) == 2.5


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (r"loss{e<=3} (\d)", "loss{e<=3} 1 lost 2"),
        (r"(\d){e}", "1{e} 2"),
        (r"[[:alpha:]](\d)", "a1 :]2 h]3"),
        (r"[]{x[:](\d)", "]1 {2 [3 :4"),
        (r"[\\[:d:](\d)", r"\1 [2 :3 d4 a5"),
        (r"\N{DIGIT ONE}{2}=(\d{1,2})", "11=23"),
        (r"a{,2}b{1,}=(\d)", "aab=1 {,2}b=2"),
        (r"(?i)LOSS=(\d)", "loss=1"),
        (r"^(\d)$", "1"),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_pattern_means_what_python_takes_it_for(pattern: str, line: str) -> None:
    assert regex.findall(_for_regex(pattern), line, regex.V0) == re.findall(pattern, line)
