"""What a server tells of a study, and how little it tells again."""

from __future__ import annotations

import html
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.studies import BEST, TRIALS, Recorded, header, ok, recorded
from tests.serve.served import served
from tests.started_processes import wait_until
from tests.study_tools import tune
from tests.toy_preset import ToyPreset
from zenith_tune.record.folder import StudyLock
from zenith_tune.study.trial import Outcome

ITERATION = " iteration {:8d}/     100 | elapsed time per iteration (ms): 500.0 | global batch size: 64 |\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_the_page_holds_the_study_and_its_script_by_hash(root: Path) -> None:
    recorded(root)
    with served(root) as client:
        page = client.get("/")
    assert page.status == 200 and page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert "connect-src 'self'" in page.text and "script-src 'sha256-" in page.text
    assert "new EventSource(" in page.text and '"studies":["s"]' in page.text


def test_data_are_those_of_the_report_and_unchanged_ones_are_not_sent_again(root: Path) -> None:
    recorded(root)
    with served(root) as client:
        first = client.get("/data.json", Accept_Encoding="gzip")
        data = first.json()
        assert (data["name"], data["best"], len(data["trials"])) == ("s", BEST, len(TRIALS))
        assert [trial["number"] for trial in data["trials"]] == list(range(len(TRIALS)))
        assert first.headers["Content-Encoding"] == "gzip" and len(first.body) < len(first.text) / 2
        again = client.get("/data.json", If_None_Match=first.headers["ETag"])
        assert (again.status, again.body) == (304, b"")
        assert client.get("/data.json").headers["Content-Encoding"] is None


def test_events_hold_only_what_changed_and_continue_where_they_were_left(root: Path) -> None:
    study = Recorded(root, "s", header(root.parent)).run(TRIALS[:3])
    with served(root) as client:
        marker = client.get("/data.json").json()["marker"]
        with client.events("/events", Last_Event_ID=marker) as events:
            number = study.start(TRIALS[3])
            started = next(events)
            assert [trial["number"] for trial in started["trials"]] == [number]
            assert started["trials"][0]["state"] == "running" and not started["is_all"]
        study.finish(number, TRIALS[3])
        with client.events(f"/events?since={started['id']}") as events:
            ended = next(events)
        assert [(trial["number"], trial["state"]) for trial in ended["trials"]] == [(number, "ok")]
        assert "best" in ended["fields"] and "header" not in ended["fields"]
        with client.events("/events", Last_Event_ID="00000000-7") as events:
            everything = next(events)
        assert everything["is_all"] and len(everything["trials"]) == 4


def test_a_running_trial_shows_iteration_and_value_so_far(root: Path) -> None:
    study = Recorded(root, "s", header(root.parent)).run(TRIALS[:1])
    number = study.start(ok(2, 1, 1, 1.0), log="".join(ITERATION.format(step) for step in range(1, 13)))
    with served(root) as client:
        trial = client.get("/data.json").json()["trials"][number]
        assert trial["progress"]["iteration"] == 12 and trial["progress"]["step_s"] == 0.5
        with client.events() as events:
            next(events)
            with study.folder.trial(number).log.open("a") as log:
                log.write(ITERATION.format(13) + " iteration       14/     100 | elapsed time per iter")
            changed = next(events)
    assert [each["progress"]["iteration"] for each in changed["trials"]] == [13]


def test_states_follow_the_tuner(root: Path) -> None:
    study = Recorded(root, "s", header(root.parent)).run(TRIALS[:2])
    lock = StudyLock(root / "studies.db", "s")
    lock.acquire()
    with served(root) as client:

        def state() -> str:
            return str(client.get("/data.json").json()["live"]["state"])

        assert state() == "running"
        number = study.start(TRIALS[2])
        lock.release()
        wait_until(lambda: state() == "stopped")
        study.finish(number, TRIALS[2])
        wait_until(lambda: state() == "ended")
        study.finish(study.start(TRIALS[3]), replace(TRIALS[3], outcome=Outcome.CANCELLED, value=None))
        wait_until(lambda: state() == "stopped")


def test_a_database_that_is_gone_is_reported_and_the_server_continues(root: Path) -> None:
    recorded(root)
    with served(root) as client, client.events() as events:
        assert next(events)["fields"]["live"]["problem"] == ""
        (root / "studies.db").rename(root / "away.db")
        live = next(events)["fields"]["live"]
        assert live["state"] == "unreadable" and "studies.db" in live["problem"] and not live["can_ask"]
        assert len(client.get("/data.json").json()["trials"]) == len(TRIALS)
        (root / "away.db").rename(root / "studies.db")
        assert next(events)["fields"]["live"]["problem"] == ""


def test_another_database_in_its_place_is_read_anew(root: Path, tmp_path: Path) -> None:
    recorded(root)
    recorded(tmp_path / "other", [ok(2, 2, 1, 9.0), ok(4, 2, 1, 8.0)])
    with served(root) as client:
        assert client.get("/data.json").json()["trials"][0]["value"] == 50_000.0
        shutil.move(tmp_path / "other" / "studies.db", root / "studies.db")
        wait_until(lambda: [t["value"] for t in client.get("/data.json").json()["trials"]] == [9.0, 8.0])


def test_a_study_that_cannot_be_read_at_all_has_a_page_that_says_so(root: Path) -> None:
    recorded(root)
    with closing(sqlite3.connect(root / "studies.db")) as connection, connection:
        connection.execute("delete from study_user_attributes")
    with served(root) as client:
        page, data = client.get("/"), client.get("/data.json")
    assert page.status == 503 and html.escape(data.json()["problem"]) in page.text
    assert data.status == 503 and "zenithtune's" in data.json()["problem"]


def test_without_a_name_it_is_the_newest_study_and_the_others_are_listed(root: Path) -> None:
    recorded(root, TRIALS[:2], name="old")
    recorded(root, TRIALS[:3], name="new")
    with served(root) as client:
        assert client.get("/data.json").json()["name"] == "new"
        assert client.get("/data.json?study=old").json()["name"] == "old"
        assert client.get("/studies.json").json() == {"studies": ["new", "old"]}
        unknown = client.get("/data.json?study=odl")
        assert unknown.status == 404 and "'old'?" in unknown.json()["problem"]
    with served(root, "old") as client:
        assert client.get("/data.json").json()["name"] == "old"


def test_a_log_is_read_on_from_where_it_was_left_in_whole_lines_and_masked(root: Path) -> None:
    study = Recorded(root, "s", header(root.parent))
    number = study.start(TRIALS[1], log="step 1\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwx\nhalf a li")
    path = f"/trial/{number}/log"
    with served(root) as client:
        first = client.get(path)
        assert first.text == "step 1\nHF_TOKEN=***\n" and first.headers["Content-Type"].startswith("text/plain")
        assert client.get(f"{path}?from=20").text == ""
        with study.folder.trial(number).log.open("a") as log:
            log.write("ne\n")
        assert client.get(f"{path}?from={first.headers['X-Log-Next']}").text == "half a line\n"
        study.folder.trial(number).log.write_text("x" * 99 + "\n" + "y" * 63 + "\n" + ("z" * 63 + "\n") * 2000)
        tail = client.get(path)
        assert len(tail.body) <= 64 * 1024 and tail.text.startswith("z" * 63 + "\n")
        assert client.get("/trial/77/log").status == 404


def test_a_study_json_is_shown_as_a_study_that_has_ended(root: Path, tmp_path: Path) -> None:
    tuner = tune(tmp_path, preset=ToyPreset([2, 1]), baseline=False)
    tuner.optimize()
    (root / "studies.db").rename(tmp_path / "away.db")
    with served(root, str(root / "s" / "study.json")) as client:
        data = client.get("/data.json").json()
        assert [trial["value"] for trial in data["trials"]] == [2.0, 1.0]
        assert (data["live"]["state"], data["live"]["can_ask"]) == ("ended", False)
        assert client.get("/studies.json").json() == {"studies": ["s"]}
        assert client.get("/data.json?study=other").status == 404
