"""A database that is lost or damaged is made anew from the trials' own files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.study_tools import PRINT_X, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune.errors import StudyError, UsageError
from zenith_tune.record.reader import StudyReader
from zenith_tune.record.recovery import recover
from zenith_tune.record.storage import database_url

CHOICES = [1, 2, 3, 4, 5]
FAILING = "sh -c '[ {x} != 2 ] && echo value: {x}'"


def view_of(root: Path, name: str = "s") -> list[tuple[object, ...]]:
    trials = StudyReader(database_url(root / "studies.db"), name).view().trials
    plain = ("value", "outcome", "identity", "command", "cause", "duration_s", "is_baseline")
    return [
        (each.number, dict(each.trial.params), dict(each.trial.extra), *(getattr(each.trial, name) for name in plain))
        for each in trials
    ]


@pytest.mark.parametrize("damage", ["lost", "cut off", "overwritten", "empty"])
def test_a_study_is_what_it_was_and_can_be_resumed(damage: str, tmp_path: Path) -> None:
    root = tmp_path / "out"
    tune(tmp_path, FAILING, ToyPreset(CHOICES)).optimize(n_trials=3)
    before = view_of(root)
    database = root / "studies.db"
    if damage == "lost":
        database.unlink()
    elif damage == "cut off":
        database.write_bytes(database.read_bytes()[:5000])
    elif damage == "overwritten":
        content = bytearray(database.read_bytes())
        content[4096:20480] = b"\xff" * 16384
        database.write_bytes(content)
    else:
        database.write_bytes(b"")
    studies, aside = recover(root / "s")
    assert (aside is not None) is (damage != "lost")
    assert [(study.name, study.num_unfinished, study.num_lost) for study in studies] == [("s", 0, 0)]
    assert view_of(root) == before
    witness = Witness()
    value, _ = tune(tmp_path, FAILING, ToyPreset(CHOICES), resume=True, listener=witness).optimize()
    assert value == 5.0
    assert [trial.params["x"] for trial in witness.trials] == [4, 5], "what had run is kept"


def test_all_studies_of_a_damaged_database_are_recovered_and_nothing_is_written_twice(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tune(tmp_path, PRINT_X, ToyPreset([1, 2]), study_name=name).optimize()
    root = tmp_path / "out"
    before = {name: view_of(root, name) for name in ("a", "b")}
    with pytest.raises(StudyError, match="nothing to recover"):
        recover(root)
    (root / "studies.db").write_bytes(b"SQLite format 3\0" + b"x" * 9000)
    studies, _ = recover(root / "b")
    assert [study.name for study in studies] == ["a", "b"], "the database had both"
    assert {name: view_of(root, name) for name in ("a", "b")} == before


def test_a_trial_whose_files_are_gone_keeps_its_number_and_one_that_ran_runs_again(tmp_path: Path) -> None:
    root = tmp_path / "out"
    tune(tmp_path, PRINT_X, ToyPreset(CHOICES), baseline=False).optimize(n_trials=4)
    (root / "studies.db").unlink()
    shutil.rmtree(root / "s" / "trials" / "0001")
    running = root / "s" / "trials" / "0003" / "trial.json"
    running.write_text(running.read_text().replace('"outcome": "ok"', '"outcome": "running"'))
    (running.parent / "exit_code").unlink()
    (study,), _ = recover(root)
    assert (study.num_finished, study.num_unfinished, study.num_lost) == (2, 1, 1)
    witness = Witness()
    tune(tmp_path, PRINT_X, ToyPreset(CHOICES), baseline=False, resume=True, listener=witness).optimize()
    assert sorted(trial.params["x"] for trial in witness.trials) == [2, 4, 5]


@pytest.mark.parametrize("has_export", [True, False])
def test_without_its_record_a_study_is_rebuilt_from_its_trials_and_a_damaged_one_is_lost(
    has_export: bool, tmp_path: Path
) -> None:
    root = tmp_path / "out"
    tune(tmp_path, PRINT_X, ToyPreset(CHOICES), baseline=False).optimize()
    before = view_of(root)
    (root / "studies.db").unlink()
    (root / "s" / "record.json").write_text("{")
    if not has_export:
        (root / "s" / "study.json").unlink()
    (root / "s" / "trials" / "0002" / "trial.json").write_text("{")
    odd = {"number": "x", "parameters": [1], "outcome": "ok", "value": "nan"}
    (root / "s" / "trials" / "0003" / "trial.json").write_text(json.dumps(odd))
    (root / "s" / "trials" / "0001" / "trial.json").write_text(json.dumps({**odd, "parameters": {"x": 2}}))
    (study,), _ = recover(root)
    assert (study.num_finished, study.num_unfinished, study.num_lost) == (2, 0, 3)
    assert [each for each in view_of(root) if each[0] in (0, 4)] == [before[0], before[4]]
    header = StudyReader(database_url(root / "studies.db"), "s").view().header
    assert header.command == (PRINT_X if has_export else "")


def test_a_damaged_database_names_its_cure(tmp_path: Path) -> None:
    tune(tmp_path, PRINT_X, ToyPreset([1, 2])).optimize()
    database = tmp_path / "out" / "studies.db"
    content = bytearray(database.read_bytes())
    content[4096:20480] = b"\xff" * 16384
    for damaged in (bytes(content), b"x" * 400):
        database.write_bytes(damaged)
        with pytest.raises(StudyError, match="zenithtune recover"):
            StudyReader(database_url(database), "s").view()


def test_what_holds_no_study_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no study"):
        recover(tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        recover(tmp_path / "none")
