"""The study that a user names, wherever it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.report.studies import BEST, TRIALS, header, recorded
from tests.study_tools import tune
from zenith_tune.errors import StudyError, UnknownNameError, UsageError
from zenith_tune.record.export import export
from zenith_tune.record.folder import StudyFolder
from zenith_tune.record.reader import ExportedStudy, StudyReader
from zenith_tune.record.source import find_study
from zenith_tune.study.parameters import Direction
from zenith_tune.study.study import Study


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_a_name_is_looked_for_in_the_output_folder(root: Path) -> None:
    recorded(root)
    assert len(find_study("s", output_dir=root).view().trials) == len(TRIALS)


def test_a_name_is_looked_for_in_a_database_that_is_given(root: Path) -> None:
    recorded(root)
    assert isinstance(find_study("s", db=str(root / "studies.db")), StudyReader)
    with pytest.raises(UnknownNameError, match="Known: s"):
        find_study("t", db=str(root / "studies.db"))


def test_a_folder_is_read_from_the_database_beside_it(root: Path) -> None:
    recorded(root)
    assert isinstance(find_study(str(root / "s")), StudyReader)


def test_an_export_says_the_same_as_the_record(tmp_path: Path) -> None:
    tune(tmp_path, "sh -c 'echo value: {x}; [ {x} != 2 ]'").optimize()
    record = find_study("s", output_dir=tmp_path / "out").view()
    copy = tmp_path / "copy" / "s"
    copy.mkdir(parents=True)
    (copy / "study.json").write_bytes((tmp_path / "out" / "s" / "study.json").read_bytes())
    source = find_study(str(copy))
    assert isinstance(source, ExportedStudy)
    copied = source.view()
    assert [each.trial.value for each in copied.trials] == [each.trial.value for each in record.trials]
    assert [each.trial.params for each in copied.trials] == [each.trial.params for each in record.trials]
    assert (copied.name, copied.best_command, copied.num_pruned) == ("s", record.best_command, 0)
    assert copied.header == record.header
    assert find_study(str(copy / "study.json")).view().best == copied.best


def test_counts_and_the_best_command_of_a_finished_study_come_from_its_export(root: Path) -> None:
    recorded(root)
    study = Study(Direction.MAXIMIZE)
    for trial in find_study("s", output_dir=root).view().study.trials:
        study.add(trial)
    study.num_pruned = 41
    export(study, header(root.parent), StudyFolder(root, "s"), "train --best")
    view = find_study("s", output_dir=root).view()
    assert (view.num_pruned, view.best_command) == (41, "train --best")
    path = root / "s" / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "best": {"number": BEST + 1}}))
    assert find_study("s", output_dir=root).view().best_command != "train --best"


@pytest.mark.parametrize(
    "change",
    [
        *({"value": "fast"}, {"value": True}, {"number": None}),
        *(
            {"value": float("nan")},
            {"value": float("inf")},
            {"duration_s": {}},
            {"peak_memory_bytes": "x"},
            {"cause": []},
        ),
    ],
    ids=lambda change: " ".join(change),
)
def test_an_export_that_was_changed_is_one_line(tmp_path: Path, change: dict[str, object]) -> None:
    tune(tmp_path).optimize()
    path = tmp_path / "out" / "s" / "study.json"
    content = json.loads(path.read_text())
    content["trials"][1] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=r"study\.json"):
        find_study(str(path)).view()


def test_what_is_not_there_is_one_line(root: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="'x'"):
        find_study("x", output_dir=root)
    recorded(root)
    with pytest.raises(UnknownNameError, match="unknown study 'x'"):
        find_study("x", output_dir=root)
    assert find_study(str(root)).name == find_study(None, output_dir=root).name == "s"
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(StudyError, match=r"empty\b"):
        find_study(str(empty))


@pytest.mark.parametrize("text", ["", "[]", '{"trials": 3}', '{"trials": []}', '{"trials": [{}], "direction": "up"}'])
def test_a_file_that_is_no_export_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "study.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"study\.json"):
        find_study(str(path)).view()
