"""The strategy, the stop reason and the strategy's closing table are part of a study's record."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.study_tools import Asks, tune
from zenith_tune.record.reader import ExportedStudy
from zenith_tune.record.search import SEARCH_KEY, StudySearch
from zenith_tune.record.source import find_study
from zenith_tune.record.view import StudyView
from zenith_tune.study.trial import Findings, Prediction

FOUND = Findings(
    title="stages",
    columns=("stage", "why"),
    rows=(("1", "it fits"), ("2", "skipped")),
    lines=("1.2x as fast",),
    predictions={1: Prediction(step_s=0.5, by="the stages")},
)


class Finds(Asks):
    """Ask, and close with a table."""

    def findings(self) -> Findings | None:
        return FOUND if self.answers else None


def look(tmp_path: Path) -> StudyView:
    return find_study("s", output_dir=tmp_path / "out").view()


def test_a_search_is_the_same_when_it_is_read_again() -> None:
    search = StudySearch(strategy="grid", max_trials=9, num_slots=2, begun_s=5.0).ended(7.0, "done", FOUND)
    assert StudySearch.from_json(json.loads(json.dumps(asdict(search)))) == search
    assert search.predictions[1].by == "the stages"


@pytest.mark.parametrize("odd", [None, 7, {"tables": [{"title": "x"}]}, {"budget": 7}])
def test_what_is_not_there_or_odd_is_nothing_known(odd: Any) -> None:
    assert StudySearch.from_json(odd) == StudySearch()


def test_strategy_stop_reason_and_table_are_in_the_database_and_in_study_json(tmp_path: Path) -> None:
    tune(tmp_path, strategy=Finds(1, 2, 3)).optimize(2)
    for view in (look(tmp_path), ExportedStudy(tmp_path / "out" / "s").view()):
        assert view.search.strategy == "Finds"
        assert "budget of 2 " in view.search.stopped
        assert (view.search.max_trials, view.search.tables) == (2, (FOUND,))


def test_they_survive_a_resume_that_is_cut_off_before_anything_was_found(tmp_path: Path) -> None:
    tune(tmp_path, strategy=Finds(1, 2)).optimize(2)
    tune(tmp_path, strategy=Finds(), resume=True).optimize(5)
    search = look(tmp_path).search
    assert search.tables == (FOUND,) and search.max_trials == 5
    assert search.strategy == "Finds" and search.stopped and "budget" not in search.stopped


def test_a_study_that_continues_has_not_stopped(tmp_path: Path) -> None:
    tune(tmp_path, strategy=Finds(1)).optimize(1)
    ended = look(tmp_path).search
    assert ended.stopped and ended.ended_s is not None
    going_on = StudySearch.from_json({**asdict(ended), "begun_s": ended.ended_s + 1})
    assert going_on.stopped == "" and going_on.tables == (FOUND,)


def test_a_record_of_an_older_release_is_read_and_resumed(tmp_path: Path) -> None:
    tune(tmp_path, strategy=Finds(1)).optimize(1)
    with sqlite3.connect(tmp_path / "out" / "studies.db") as connection:
        connection.execute("delete from study_user_attributes where key = ?", (SEARCH_KEY,))
    connection.close()
    path = tmp_path / "out" / "s" / "study.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "search"}))
    assert look(tmp_path).search == ExportedStudy(path).view().search == StudySearch()
    tune(tmp_path, strategy=Finds(2), resume=True).optimize(3)
    assert look(tmp_path).search.strategy == "Finds"


def test_secrets_are_masked_in_the_stop_reason(tmp_path: Path) -> None:
    class Fails(Asks):
        def why_done(self) -> str | None:
            return "it ended with hf_abcdefghijklmnopqrstuvwxyz1234"

    command = "sh -c 'HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz1234; echo value: {x}'"
    tune(tmp_path, command, strategy=Fails(1)).optimize(3)
    assert look(tmp_path).search.stopped == "it ended with ***"
