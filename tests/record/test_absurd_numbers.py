"""A study.json that somebody changed is refused in one line, or shown; it never ends in an unexpected error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_runs import Run, running
from tests.report.studies import recorded
from zenith_tune.record.export import export
from zenith_tune.record.reader import StudyReader

ABSURD = ["-1e308", "1e308", "5e-324", "1e999", "1" + 400 * "0", "-1", "0", "true", '"x"', "[]", "null", "1e30"]
REFUSED = ABSURD[:5]
PLACES = [
    ("trials", 1, "value"),
    ("trials", 1, "duration_s"),
    ("trials", 1, "peak_memory_bytes"),
    ("trials", 1, "number"),
    ("trials", 1, "parameters", "tp"),
    ("trials", 1, "parameters", "recompute_method"),
    ("trials", 1, "invented"),
    ("search", "max_trials"),
    ("args", "seq"),
    ("best_command",),
]


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    study = recorded(tmp_path_factory.mktemp("out") / "out")
    view = StudyReader(study.url, "s").view()
    export(view.study, view.header, study.folder, view.best_command, view.search)
    loaded: dict[str, Any] = json.loads(study.folder.json.read_text())
    return loaded


def changed(content: dict[str, Any], place: tuple[str | int, ...], number: str) -> str:
    copy = json.loads(json.dumps(content))
    at = copy
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = "<here>"
    return json.dumps(copy).replace('"<here>"', number)


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return running("report", capsys)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: str(place[-1]))
def test_an_absurd_number_is_one_line_or_shown(
    content: dict[str, Any], place: tuple[str | int, ...], report: Run
) -> None:
    for number in ABSURD:
        Path("study.json").write_text(changed(content, place, number))
        done = report("study.json", "--format", "md")
        assert done.code in ((2,) if number in REFUSED else (0, 2)), (number, done.err)
        assert done.err.count("\n") == (1 if done.code else 0), (number, done.err)


def test_a_study_s_own_numbers_are_read_as_they_are(content: dict[str, Any], report: Run) -> None:
    Path("study.json").write_text(changed(content, ("trials", 1, "value"), "1e99"))
    assert report("study.json", "--format", "md").code == 0
