"""The examples of rank errors."""

from __future__ import annotations

from zenith_tune.evaluators.failures.rank_errors import split_prefix


def test_the_rank_of_a_line_is_its_prefix() -> None:
    assert split_prefix("[rank3]:   File") == (3, "  File")
