"""The examples of trackers."""

from __future__ import annotations

from zenith_tune.runners.launch.trackers import without_trackers


def test_trackers_make_no_run_unless_told_to() -> None:
    assert without_trackers({"HOME": "/root", "WANDB_MODE": "offline"}) == {
        "WANDB_MODE": "offline",
        "SWANLAB_MODE": "disabled",
        "HOME": "/root",
    }
