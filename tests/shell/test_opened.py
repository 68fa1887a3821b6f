"""The examples of opened."""

from __future__ import annotations

from zenith_tune.shell.scripts.opened import _keys


def test_the_value_of_an_option_counts_as_its_options() -> None:
    assert _keys(["python", "train.py", "--lr", "1"]) == ["python", "train.py", "--lr", "--lr="]
