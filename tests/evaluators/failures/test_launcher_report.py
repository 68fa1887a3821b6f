"""The examples of launcher report."""

from __future__ import annotations

from zenith_tune.evaluators.failures.launcher_report import above_report


def test_what_ranks_print_stands_above_their_launchers_report() -> None:
    assert above_report("bad key\nE1119 api.py:1002] failed (exitcode: 1) local_rank: 1\nTraceback ...") == "bad key\n"
