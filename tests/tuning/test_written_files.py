"""What the user's own command writes into its folder is named once, before any other trial writes it again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset


@pytest.mark.parametrize(("written", "is_named"), [("model.pt", True), (".cache", False), ("/dev/null", False)])
def test_files_that_the_own_command_writes_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, is_named: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    witness = Witness()
    tune(
        tmp_path, f"sh -c 'echo >> {written}; echo value: 5'", ToyPreset(), strategy=Asks(1), listener=witness
    ).optimize()
    assert len([line for line in witness.notes if "writes model.pt" in line]) == is_named
    assert is_named or not any("{trial_folder}" in line for line in witness.notes)


def test_trackers_are_off_in_trials_unless_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("SWANLAB_MODE", "local")
    witness = Witness()
    command = "sh -c 'echo modes $WANDB_MODE $SWANLAB_MODE; echo value: 5'"
    tune(tmp_path, command, ToyPreset(), strategy=Asks(1), listener=witness).optimize()
    own = witness.trials[0]
    assert own.folder is not None and "modes disabled local" in (own.folder / "log.txt").read_text()
    assert "WANDB_MODE" not in os.environ
