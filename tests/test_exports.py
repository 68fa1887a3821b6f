"""The examples of exports."""

from __future__ import annotations

from zenith_tune.exports import _name


def test_a_name_is_written_as_mlflow_takes_it() -> None:
    assert _name("recompute (full)?") == "recompute _full__"
