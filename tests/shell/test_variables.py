"""The examples of variables."""

from __future__ import annotations

from zenith_tune.shell.variables import set_variables


def test_variables_are_listed_with_their_values() -> None:
    assert set_variables("export A=1 && env B='2 3' python train.py C=4") == {"A": "1", "B": "2 3"}
