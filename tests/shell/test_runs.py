"""The examples of runs."""

from __future__ import annotations

from zenith_tune.shell.scripts.runs import find_runs


def test_a_run_is_found_with_its_variables() -> None:
    reading = find_runs("LR=2; python train.py --lr $LR", lambda words, at: words[at] == "train.py")
    assert reading.runs[0].launcher == ("python",)
    assert reading.runs[0].arguments == ("--lr", "2")
