"""The examples of no effect."""

from __future__ import annotations

from zenith_tune.evaluators.failures.no_effect import disagreement


def test_an_argument_with_another_value_is_named() -> None:
    assert (
        disagreement("  micro_batch_size ........ 1", {"micro_batch_size": 4})
        == "micro_batch_size is 1 in the log, but 4 was asked for"
    )
