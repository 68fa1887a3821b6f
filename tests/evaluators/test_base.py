"""The examples of base."""

from __future__ import annotations

from zenith_tune.evaluators.base import is_objective_name


def test_a_pattern_is_no_name_of_an_objective() -> None:
    assert is_objective_name("tokens_per_s")
    assert not is_objective_name(r"loss: (\S+)")
