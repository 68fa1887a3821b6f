"""Pause and cancel: only from the page itself, and only where there is something to ask."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.studies import TRIALS, Recorded, header, recorded
from tests.serve.served import Client, served
from tests.started_processes import wait_until
from tests.study_tools import Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune.record.control import StudyControl
from zenith_tune.record.folder import StudyLock
from zenith_tune.study.trial import Outcome

SLOW = "sh -c 'sleep {x}; echo value: {x}'"


@pytest.fixture
def tuned(tmp_path: Path) -> Iterator[Recorded]:
    """A study with one trial that runs, held by a tuner."""
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS[:2])
    study.start(TRIALS[2])
    lock = StudyLock(tmp_path / "out" / "studies.db", "s")
    lock.acquire()
    yield study
    lock.release()


@pytest.fixture
def client(tuned: Recorded) -> Iterator[Client]:
    with served(tuned.folder.output_dir) as client:
        yield client


def test_a_study_is_paused_and_continued(tuned: Recorded, client: Client) -> None:
    control = StudyControl(tuned.folder.control)
    assert client.post("/pause").status == 202
    assert control.is_paused()
    assert client.get("/data.json").json()["live"] == {
        "state": "pausing",
        "problem": "",
        "can_ask": True,
        "cancelled": [],
    }
    assert client.post("/resume").status == 202
    assert not control.is_paused()


def test_a_trial_is_cancelled_if_it_runs(tuned: Recorded, client: Client) -> None:
    assert client.post("/trial/2/cancel?study=s").status == 202
    assert StudyControl(tuned.folder.control).is_cancelled(2)
    assert client.get("/data.json").json()["live"]["cancelled"] == [2]
    for number in (1, 77):
        refused = client.post(f"/trial/{number}/cancel")
        assert refused.status == 409
        assert f"trial {number} " in refused.json()["problem"]


def test_a_request_of_another_page_is_refused(tuned: Recorded, client: Client) -> None:
    foreign: list[tuple[str, str | None]] = [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Origin", None),
        ("Content-Type", "text/plain"),
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("X-Zenithtune-Csrf", "guessed"),
        ("X-Zenithtune-Csrf", None),
    ]
    for name, value in foreign:
        for path in ("/pause", "/resume", "/trial/2/cancel"):
            assert client.post(path, changes={name: value}).status == 403, (name, value)
    assert not tuned.folder.control.exists()


def test_a_request_is_a_post_with_an_object(tuned: Recorded, client: Client) -> None:
    for path in ("/pause", "/resume", "/trial/2/cancel"):
        asked = client.get(path)
        assert (asked.status, asked.headers["Allow"]) == (405, "POST")
        for body in (b"", b"[]", b"{", b"[" * 4000):
            assert client.post(path, body=body).status == 400
    assert client.post("/data.json").status == 405
    assert not tuned.folder.control.exists()


def test_a_study_whose_folder_is_elsewhere_cannot_be_asked(tuned: Recorded, client: Client) -> None:
    tuned.folder.path.rename(tuned.folder.path.with_name("moved"))
    assert client.get("/data.json").json()["live"]["can_ask"] is False
    for path in ("/pause", "/trial/2/cancel"):
        refused = client.post(path)
        assert refused.status == 409 and str(tuned.folder.path) in refused.json()["problem"]


def test_of_a_study_that_has_ended_nothing_can_be_asked(tmp_path: Path) -> None:
    study = recorded(tmp_path / "out")
    lock = StudyLock(tmp_path / "out" / "studies.db", "s")
    lock.acquire()
    lock.release()
    with served(tmp_path / "out") as client:
        assert client.get("/data.json").json()["live"]["can_ask"] is False
        refused = client.post("/pause")
    assert refused.status == 409 and "'s' has ended" in refused.json()["problem"]
    assert not study.folder.control.exists()


def test_a_study_that_runs_heeds_what_is_asked(tmp_path: Path) -> None:
    witness = Witness()
    tuner = tune(tmp_path, SLOW, ToyPreset([60, 0.1]), listener=witness, baseline=False)
    thread = threading.Thread(target=tuner.optimize)
    thread.start()
    wait_until(lambda: (tmp_path / "out" / "s" / "trials" / "0000" / "log.txt").exists())
    with served(tmp_path / "out") as client:
        assert client.post("/pause").status == 202
        assert client.post("/trial/0/cancel").status == 202
        wait_until(lambda: client.get("/data.json").json()["live"]["state"] == "paused")
        assert [trial.outcome for trial in witness.trials] == [Outcome.CANCELLED]
        assert client.post("/resume").status == 202
        thread.join(500)
        assert not thread.is_alive() and [trial.value for trial in witness.trials] == [None, 0.1]
        wait_until(lambda: client.get("/data.json").json()["live"]["state"] == "ended")
