"""The examples of command."""

from __future__ import annotations

from zenith_tune.presets.accelerate.command import recognises


def test_accelerate_is_recognised_by_launch() -> None:
    assert recognises("accelerate launch train.py")
    assert not recognises("accelerate config")
