"""The examples of dialect."""

from __future__ import annotations

from zenith_tune.presets.trainer.dialect import program_words


def test_the_program_behind_launchers_is_found() -> None:
    assert program_words("srun /opt/bin/axolotl train F.yaml") == ("axolotl", ["train", "F.yaml"])
