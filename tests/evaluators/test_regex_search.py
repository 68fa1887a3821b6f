from __future__ import annotations

import sys
import time

import pytest

from zenith_tune.evaluators import regex_search
from zenith_tune.evaluators.regex import RegexEvaluator
from zenith_tune.evaluators.regex_search import SearchError, search_apart


@pytest.mark.parametrize(
    ("pattern", "line"),
    [("v ((?:a+)+)!", "v " + "a" * 60), ("(?:a|a)*(b)", "a" * 60), ("a*a*a*a*(b)", "a" * 60_000)],
)
def test_a_pattern_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch, pattern: str, line: str) -> None:
    monkeypatch.setattr(regex_search, "MOST_CPU_S", 1)
    begin = time.monotonic()
    with pytest.raises(ValueError, match=r"takes more than 1 s: write it without a repeat inside a repeat"):
        RegexEvaluator(pattern).evaluate(f"loss 1\n{line}\n", {})
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(("which", "values"), [("first", ["1"]), ("last", ["3"]), ("mean", ["1", "2", "3"])])
def test_what_is_asked_for_is_found_in_order(which: str, values: list[str]) -> None:
    assert search_apart(r"v=(\d)", ["v=1 v=2", "nothing", "v=3"], which) == values


def test_letters_of_any_kind_go_there_and_back() -> None:
    assert search_apart("\udcff→(.+)", ["\udcff→\ud800ß\u2028日"], "last") == ["\ud800ß\u2028日"]


def test_a_pattern_of_words_and_blanks_ends_on_a_long_line() -> None:
    assert search_apart(r"(?:\S+\s+)+loss (\S+)", ["word " * 8000 + "loss 2.5"], "last") == ["2.5"]


def test_where_no_process_can_be_started_the_search_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert search_apart(r"v=(\d)", ["v=1 v=2"], "last") == ["2"]


def test_a_search_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(SearchError, match="ended with code 1"):
        search_apart(r"v=(\d)", ["v=1"], "last")
