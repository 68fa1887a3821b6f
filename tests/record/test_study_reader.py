"""A study read from its record by somebody who did not write it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.studies import BASELINE, BEST, COMMAND, TRIALS, Recorded, header, multiplied, ok, recorded
from zenith_tune.errors import StudyError, UnknownNameError
from zenith_tune.record.folder import StudyLock
from zenith_tune.record.reader import StudyReader, study_names
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Outcome


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_the_reader_sees_every_trial_as_the_record_does(root: Path) -> None:
    study = Recorded(root, "s", header(root.parent)).run(TRIALS)
    view = StudyReader(study.url, "s").view()
    assert [each.trial for each in view.trials] == study.record.finished()
    assert view.header == header(root.parent)
    assert view.direction is Direction.MAXIMIZE


def test_best_baseline_and_gain_are_those_of_the_study(root: Path) -> None:
    view = StudyReader(recorded(root).url, "s").view()
    assert view.best is not None and view.best.number == BEST
    assert view.baseline is not None and view.baseline.value == BASELINE.value
    assert view.study.gain == pytest.approx(61_000 / 50_000 - 1)
    assert view.study.counts()[Outcome.OOM] == 2
    assert view.unit == "tokens/s"
    assert view.best_command == f"{COMMAND} --trial {BEST}"


def test_a_study_is_read_while_another_process_holds_and_writes_it(root: Path) -> None:
    study = Recorded(root, "s", header(root.parent))
    lock = StudyLock(root / "studies.db", "s")
    lock.acquire()
    first = study.start(ok(1, 1, 1, 1.0), log="step 1\nHF_TOKEN=hf_abcdefghijklmnopqrstuvwx\nstep 2\n")
    reader = StudyReader(study.url, "s")
    (running,) = reader.view().running
    assert (running.number, running.state, running.trial.value) == (first, "running", None)
    assert running.started_s is not None and abs(running.started_s - time.time()) < 60
    assert running.log_lines(3) == ["step 1", "HF_TOKEN=***", "step 2"]
    assert reader.view().ended_s is None
    study.finish(first, ok(1, 1, 1, 7.0))
    view = reader.view()
    assert [each.trial.value for each in view.trials] == [7.0]
    assert view.ended_s is not None and not view.running
    lock.release()


def test_a_second_look_reads_only_what_changed(root: Path) -> None:
    study = Recorded(root, "s", header(root.parent)).run(TRIALS[:3])
    reader = StudyReader(study.url, "s")
    number = study.start(TRIALS[3])
    before = reader.view().trials
    study.finish(number, TRIALS[3])
    after = reader.view().trials
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, True, True, False]


def test_of_a_run_that_was_tried_again_the_last_time_counts(root: Path) -> None:
    worse = replace(ok(2, 2, 1, 100.0), why="again")
    view = StudyReader(recorded(root, [BASELINE, ok(2, 2, 1, 90_000.0), worse]).url, "s").view()
    assert view.best is not None and (view.best.number, view.best.value) == (2, 100.0)
    assert len(view.trials) == 3 and len(view.study.trials) == 1


def test_a_second_look_at_a_thousand_trials_costs_a_tenth_of_the_first(root: Path) -> None:
    study = recorded(root, TRIALS[:2])
    multiplied(root / "studies.db", 1000)
    reader, costs_s = StudyReader(study.url, "s"), []
    for _ in range(4):
        start = time.process_time()
        assert len(reader.view().trials) == 1000
        costs_s.append(time.process_time() - start)
    assert min(costs_s[1:]) < costs_s[0] / 10, costs_s


def test_a_database_that_takes_the_place_of_another_is_read_anew(root: Path, tmp_path: Path) -> None:
    reader = StudyReader(recorded(root).url, "s")
    assert len(reader.view().trials) == len(TRIALS)
    recorded(tmp_path / "new" / "out", TRIALS[:2])
    (tmp_path / "new" / "out" / "studies.db").replace(root / "studies.db")
    assert len(reader.view().trials) == 2


def test_reading_leaves_the_database_as_it_is(root: Path) -> None:
    study = recorded(root)
    before = (root / "studies.db").read_bytes(), sorted(path.name for path in root.iterdir())
    StudyReader(study.url, "s").view()
    assert ((root / "studies.db").read_bytes(), sorted(path.name for path in root.iterdir())) == before


def test_a_commit_that_a_kill_cut_off_is_taken_back(root: Path, tmp_path: Path) -> None:
    recorded(root)
    other = tmp_path / "killed"
    other.mkdir()
    connection = sqlite3.connect(root / "studies.db")
    connection.execute("pragma cache_size = 1")
    connection.execute("begin exclusive")
    connection.execute("update trial_user_attributes set value_json = value_json || zeroblob(9000)")
    for name in ("studies.db", "studies.db-journal"):
        shutil.copyfile(root / name, other / name)
    connection.rollback()
    connection.close()
    connection = sqlite3.connect(f"file:{other}/studies.db?mode=ro", uri=True)
    with closing(connection), pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("select * from trials")
    view = StudyReader(f"sqlite:///{other}/studies.db", "s").view()
    assert len(view.trials) == len(TRIALS)


def test_the_study_that_was_begun_last_is_named_first(root: Path) -> None:
    recorded(root, name="b")
    assert study_names(recorded(root, name="a").url) == ["a", "b"]


def test_an_unknown_study_is_refused_with_those_that_are_there(root: Path) -> None:
    study = recorded(root)
    with pytest.raises(UnknownNameError, match=r"'S2'.* s\."):
        StudyReader(study.url, "S2").view()


def test_a_database_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("hello " * 100)
    (tmp_path / "empty.db").touch()
    for name in ("notes.db", "empty.db", "gone.db"):
        with pytest.raises(StudyError, match=name) as caught:
            StudyReader(f"sqlite:///{tmp_path}/{name}", "s").view()
        assert caught.value.hint and "\n" not in str(caught.value)
    assert not (tmp_path / "gone.db").exists() and not (tmp_path / "empty.db").stat().st_size


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        ("delete from study_user_attributes", "'s'"),
        ("update study_user_attributes set value_json = '{\"preset\": 1}'", "'s'"),
        ("update trial_user_attributes set value_json = '[1]' where key = 'result'", "trial 0 .*'s'"),
        ("update trial_params set param_value = 99", "'s'"),
        ("update study_user_attributes set value_json = '{'", "'s'"),
        ("update trial_values set value = 9e999", "trial 0 .*inf"),
    ],
)
def test_a_study_of_somebody_else_is_one_line(root: Path, statement: str, named: str) -> None:
    study = recorded(root)
    with sqlite3.connect(root / "studies.db") as connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(StudyError, match=named) as caught:
        StudyReader(study.url, "s").view()
    assert caught.value.hint and "\n" not in str(caught.value)


def test_a_study_that_was_moved_is_read_where_it_is(root: Path, tmp_path: Path) -> None:
    recorded(root)
    root.rename(tmp_path / "moved")
    view = StudyReader(f"sqlite:///{tmp_path}/moved/studies.db", "s").view()
    assert view.folder == tmp_path / "moved" / "s"
    assert view.trials[2].log_lines(1)[0].startswith("torch.OutOfMemoryError")


def test_finding_a_study_loads_nothing_heavy_before_it_is_asked() -> None:
    code = (
        "import sys; from zenith_tune.record.source import find_study; "
        "print([name for name in ('optuna', 'rich', 'sqlalchemy', 'torch') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500, check=True)
    assert done.stdout.strip() == "[]"
