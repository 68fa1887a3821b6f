"""The examples of steps."""

from __future__ import annotations

from zenith_tune.evaluators.steps import read_number


def test_a_number_may_have_commas_between_thousands() -> None:
    assert read_number("1,234.5") == 1234.5
    assert read_number("1,5") is None
