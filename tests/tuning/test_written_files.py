"""What the user's own command writes into its folder is named once, before any other trial writes it again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune.runners.launch.left_files import OwnFiles


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


PROGRAM = """\
import pathlib
for name in ("model.pt", "new.pt"):
    pathlib.Path("ckpt", name).write_text("of a trial")
print("value: 5")
"""


@pytest.mark.parametrize("ends", [None, "sigkill"])
def test_files_of_yours_that_runs_overwrite_are_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ckpt").mkdir()
    yours = {"ckpt/model.pt": "of weeks", "train.log": "of yesterday", "data.jsonl": "read only"}
    for name, text in yours.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text(PROGRAM)
    command = f"{sys.executable} train.py data.jsonl 2>&1 | tee train.log"
    witness = Witness()
    with monkeypatch.context() as patch:
        if ends:  # what a tuner does at its end is left out
            patch.setattr(OwnFiles, "put_back", lambda self: [])
        tune(tmp_path, command, ToyPreset(), strategy=Asks(1), listener=witness).optimize()
    assert any("ckpt/model.pt and train.log of before will be put back" in line for line in witness.notes)
    if ends:
        assert (tmp_path / "ckpt" / "model.pt").read_text() == "of a trial"
        tune(tmp_path, command, ToyPreset(), strategy=Asks(1, 2), resume=True).optimize()
    assert {name: (tmp_path / name).read_text() for name in yours} == yours
    (tmp_path / "train.log").write_text("of today")
    tune(tmp_path, command, ToyPreset(), strategy=Asks(1, 2, 3), resume=True).optimize()
    assert (tmp_path / "train.log").read_text() == "of today"
    assert (tmp_path / "ckpt" / "new.pt").exists(), "what was not there before stays, and is named"


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
