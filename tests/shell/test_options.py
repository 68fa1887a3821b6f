"""The examples of options."""

from __future__ import annotations

from zenith_tune.shell.options import Splice, apply_splices, canonical


def test_an_option_has_one_spelling() -> None:
    assert canonical("--micro_batch_size") == "--micro-batch-size"


def test_splices_are_done_together() -> None:
    assert apply_splices("--tp 4 --pp 2", [Splice(5, 6, "8"), Splice(12, 13, "1")]) == "--tp 8 --pp 1"
