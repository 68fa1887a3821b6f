"""The examples of command."""

from __future__ import annotations

from zenith_tune.presets.llamafactory.command import recognises


def test_only_the_training_of_llamafactory_is_recognised() -> None:
    assert recognises("FORCE_TORCHRUN=1 llamafactory-cli train F.yaml bf16=true")
    assert not recognises("llamafactory-cli export F.yaml")
