"""What another process may ask of a study that runs."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from tests.started_processes import wait_until
from tests.study_tools import Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune.evaluators.failures.failures import FailureKind
from zenith_tune.record.control import StudyControl
from zenith_tune.study.trial import Outcome

SLOW = "sh -c 'touch {trial_folder}/begun; sleep {x}; echo value: {x}'"


def test_a_trial_is_ended_by_hand_and_the_study_continues(tmp_path: Path) -> None:
    witness = Witness()
    tuner = tune(tmp_path, SLOW, ToyPreset([60, 0.1]), listener=witness, baseline=False)
    thread = threading.Thread(target=tuner.optimize)
    thread.start()
    folder = tmp_path / "out" / "s"
    wait_until((folder / "trials" / "0000" / "begun").exists)
    StudyControl(folder / "control.json").cancel(0)
    thread.join(500)
    assert not thread.is_alive()
    first, second = witness.trials
    assert (first.outcome, first.failure) == (Outcome.CANCELLED, FailureKind.REVOKED)
    assert "by hand" in str(first.cause)
    assert second.value == 0.1
    assert witness.end is not None and len(witness.end.study.trials) == 2


def test_a_trial_ended_by_hand_runs_again_when_the_study_is_resumed(tmp_path: Path) -> None:
    test_a_trial_is_ended_by_hand_and_the_study_continues(tmp_path)
    again = Witness()
    tuner = tune(tmp_path, SLOW, ToyPreset([60, 0.1]), listener=again, baseline=False, resume=True)
    thread = threading.Thread(target=tuner.optimize)
    thread.start()
    wait_until((tmp_path / "out" / "s" / "trials" / "0002" / "begun").exists)
    StudyControl(tmp_path / "out" / "s" / "control.json").cancel(2)
    thread.join(500)
    assert [trial.params["x"] for trial in again.trials] == [60]


def test_a_paused_study_starts_nothing_until_it_is_continued(tmp_path: Path) -> None:
    witness = Witness()
    tuner = tune(tmp_path, SLOW, ToyPreset([1, 0.1]), listener=witness, baseline=False)
    thread = threading.Thread(target=tuner.optimize)
    thread.start()
    folder = tmp_path / "out" / "s"
    control = StudyControl(folder / "control.json")
    wait_until((folder / "trials" / "0000" / "begun").exists)
    control.pause()
    deadline = time.monotonic() + 500
    while not witness.trials and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.5)
    assert [trial.params["x"] for trial in witness.trials] == [1]
    assert not (folder / "trials" / "0001").exists()
    control.pause(False)
    thread.join(500)
    assert [trial.params["x"] for trial in witness.trials] == [1, 0.1]
    paused, continued = [note for note in witness.notes if "paused" in note or "continued" in note]
    assert paused.startswith("paused") and not continued.startswith("paused")


def test_a_file_that_holds_anything_is_no_request(tmp_path: Path) -> None:
    path = tmp_path / "control.json"
    control = StudyControl(path)
    assert not control.is_paused() and not control.is_cancelled(1)
    for text in ("", "[1]", "{", '{"paused": "yes", "cancelled": 5}', '"x"', "\x00"):
        path.write_text(text)
        assert not control.is_paused() and not control.is_cancelled(5), text
    control.cancel(5)
    control.pause()
    assert control.is_cancelled(5) and StudyControl(path).is_paused()
    control.forget()
    assert not control.is_cancelled(5)
