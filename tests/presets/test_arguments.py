"""The examples of arguments."""

from __future__ import annotations

from zenith_tune.presets.arguments import chosen_axes


def test_a_name_may_stand_for_several_axes() -> None:
    assert sorted(chosen_axes("default+tp", {"default": ("stage", "mbs"), "tp": ("tp",)})) == ["mbs", "stage", "tp"]
