"""The examples of command."""

from __future__ import annotations

from zenith_tune.presets.axolotl.command import recognises


def test_only_the_training_of_axolotl_is_recognised() -> None:
    assert recognises("accelerate launch -m axolotl.cli.train F.yaml")
    assert not recognises("axolotl preprocess F.yaml")
