"""The command `zenithtune list`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.command_runs import Run, as_json, running
from tests.report.studies import BASELINE, TRIALS, header, ok, recorded
from zenith_tune.record.export import export
from zenith_tune.record.folder import StudyFolder, StudyLock
from zenith_tune.study.parameters import Direction
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome

LONG = "megatron-lm-llama3-70b-on-the-new-cluster-with-fp8-and-the-long-sequences-of-november"


@pytest.fixture
def listed(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    recorded(tmp_path / "zenithtune-out")
    recorded(tmp_path / "zenithtune-out", [BASELINE, ok(2, 2, 1, 40_000.0)], name=LONG)
    for name in ("s", LONG):  # as their tuners leave it behind
        lock = StudyLock(tmp_path / "zenithtune-out" / "studies.db", name)
        lock.acquire()
        lock.release()
    return running("list", capsys)


def test_every_study_of_the_folder_is_listed_the_newest_first(listed: Run) -> None:
    newest, first = as_json(listed("--json"))["studies"]
    assert (newest["name"], first["name"]) == (LONG, "s")
    assert first["num_trials"] == len(TRIALS) - 1
    assert (first["best"], first["unit"], first["state"]) == (61_000.0, "tokens/s", "ended")
    assert first["gain"] == pytest.approx(0.22)
    assert first["started_s"] > 0


def test_a_study_of_which_no_run_went_well_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "out", [replace(BASELINE, outcome=Outcome.ERROR, value=None)])
    lock = StudyLock(tmp_path / "out" / "studies.db", "s")
    lock.acquire()
    lock.release()
    (study,) = as_json(running("list", capsys)(str(tmp_path / "out"), "--json"))["studies"]
    assert (study["state"], study["num_trials"]) == ("failed", 0)


def test_a_study_whose_own_command_is_the_fastest_has_no_gain(listed: Run) -> None:
    slower = as_json(listed("--json"))["studies"][0]
    assert (slower["gain"], slower["best"]) == (0.0, 50_000.0)


def test_a_folder_and_a_database_can_be_named(listed: Run, tmp_path: Path) -> None:
    names = [each["name"] for each in as_json(listed("zenithtune-out", "--json"))["studies"]]
    database = str(tmp_path / "zenithtune-out" / "studies.db")
    assert [each["name"] for each in as_json(listed("--db", database, "--json"))["studies"]] == names


def test_a_study_that_is_only_in_its_folder_is_listed_too(listed: Run, tmp_path: Path) -> None:
    study = Study(Direction.MAXIMIZE)
    study.add(replace(BASELINE, number=0))
    study.add(replace(ok(1, 2, 1, 62_500.0), number=1))
    place = StudyFolder(tmp_path / "zenithtune-out", "copied")
    place.create()
    export(study, header(tmp_path), place, None)
    copied = as_json(listed("--json"))["studies"][-1]
    assert (copied["name"], copied["num_trials"], copied["gain"]) == ("copied", 1, pytest.approx(0.25))


def test_a_damaged_study_does_not_hide_the_others(listed: Run, tmp_path: Path) -> None:
    broken = tmp_path / "zenithtune-out" / "broken"
    broken.mkdir()
    (broken / "study.json").write_text("{}")
    states = {each["name"]: each["state"] for each in as_json(listed("--json"))["studies"]}
    assert (states["broken"], states["s"]) == ("unreadable", "ended")


def test_no_word_is_cut_at_80_columns(listed: Run) -> None:
    done = listed()
    assert done.code == 0
    assert LONG in done.out.split() and "61,000" in done.out
    assert all(len(line) <= 80 or line == LONG for line in done.out.splitlines())


@pytest.mark.parametrize("arguments", [["gone"], ["--db", "gone.db"], ["empty"]])
def test_where_there_is_no_study_one_line_says_so(listed: Run, tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    done = listed(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)


def test_the_list_is_written_as_a_page_with_links_to_the_pages_that_are_there(listed: Run, tmp_path: Path) -> None:
    page = tmp_path / "pages" / "studies.html"
    page.parent.mkdir()
    report = next(path for path in tmp_path.glob("zenithtune-out/*") if path.is_dir()) / "report.html"
    report.write_text("")
    listed("--html", str(page))
    found = re.findall(r'"href":("[^"]*"|null)', page.read_text())
    assert sorted(set(found)) == sorted({f'"../zenithtune-out/{report.parent.name}/report.html"', "null"})
