"""The examples of process tree."""

from __future__ import annotations

from zenith_tune.runners.launch.process_tree import end_arguments


def test_what_ends_a_job_is_started_with_its_mark() -> None:
    assert end_arguments("trial-1", 5.0) == ["ZENITHTUNE_TRIAL_FOLDER=trial-1", "50"]
