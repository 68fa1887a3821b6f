from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
import sqlalchemy
from optuna.trial import TrialState, create_trial

from tests.command_runs import running
from tests.engines.postgresql_server import PASSWORD, PostgresqlServer, postgresql_programs
from tests.engines.postgresql_studies import (
    ManyTuners,
    eventually,
    hanging_at_first,
    joined,
    lines_of,
    opened,
    rows,
    start_tuner,
)
from tests.mentions import mentions
from tests.requirements import need_module
from tests.study_tools import PRINT_X, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune.errors import StudyError, TrialExhausted
from zenith_tune.record.record import StudyRecord
from zenith_tune.record.server.claims import create_once, run_key
from zenith_tune.record.server.other_tuners import Rhythm
from zenith_tune.record.server.url import driver_url
from zenith_tune.record.source import find_study
from zenith_tune.study.trial import Outcome, RunKey, Trial

NUM_TRIALS = 100


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    need_module("postgresql", "psycopg")
    server = PostgresqlServer(postgresql_programs())
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.mark.slow
def test_eight_tuners_run_each_trial_once_through_a_restart_of_the_database(
    server: PostgresqlServer, tmp_path: Path
) -> None:
    tuners = ManyTuners(tmp_path, server.url, 8, "--strategy", "random", "--no-confirm", "--n-trials", str(NUM_TRIALS))
    try:
        eventually(lambda: len(lines_of(tuners.ran)) > NUM_TRIALS // 3)
        server.strike_down()
        server.launch()
        assert tuners.wait() == [0] * 8, tuners.errors()
    finally:
        tuners.close()
    ran = lines_of(tuners.ran)
    assert len(ran) == len(set(ran)) == NUM_TRIALS + 1  # your own command is the one more
    twins = "select trial_id from trial_user_attributes where key = 'twin_of'"  # where the strike hit a commit
    states = rows(server.url, "select state, count(*) from trials join studies using (study_id) "
                  f"where study_name = 's' and trial_id not in ({twins}) group by state")  # fmt: skip
    assert states == [("COMPLETE", NUM_TRIALS + 1)]
    ends = [events[0] for events in tuners.events("study_ended")]
    assert [end["outcomes"] for end in ends] == [{"ok": NUM_TRIALS}] * 8
    assert len({end["best"]["value"] for end in ends}) == 1
    assert sum(map(len, tuners.events("trial_finished"))) == NUM_TRIALS + 1
    assert mentions(tuners.errors(), "answers again")
    assert PASSWORD not in tuners.errors() + (tmp_path / "out0").read_text()


@pytest.mark.slow
def test_the_trial_of_a_killed_tuner_is_ended_and_run_by_another(server: PostgresqlServer, tmp_path: Path) -> None:
    command, witness, found = hanging_at_first(tmp_path), Witness(), []
    doomed = start_tuner("killed", tmp_path, server.url, command)
    waiting = start_tuner("killed", tmp_path, server.url, command)
    try:
        eventually(lambda: bool(lines_of(tmp_path / "ran-1")) and bool(lines_of(tmp_path / "ran-3")))
        options: dict[str, Any] = {"db_path": server.url, "study_name": "killed", "resume": True, "baseline": False}
        other = tune(tmp_path, command, **options, listener=witness)
        tuning = threading.Thread(target=lambda: found.append(other.optimize()[0]), daemon=True)
        tuning.start()
        eventually(lambda: len(witness.recalled) == 2)
        (tmp_path / "go").touch()
        owner = int(Path(f"/proc/{lines_of(tmp_path / 'ran-1')[0]}/stat").read_text().rpartition(")")[2].split()[1])
        parent = int(Path(f"/proc/{owner}/stat").read_text().rpartition(")")[2].split()[1])
        by_pid = {doomed.pid: doomed, waiting.pid: waiting}
        killed = by_pid.pop(owner if owner in by_pid else parent)
        killed.kill()
        killed.wait()
        tuning.join(timeout=500)
        assert next(iter(by_pid.values())).wait(timeout=500) == 0
    finally:
        for process in (doomed, waiting):
            process.kill()
            process.wait()
    assert found == [3.0]
    assert [len(lines_of(tmp_path / f"ran-{x}")) for x in (1, 2, 3)] == [2, 1, 1]
    eventually(lambda: not Path(f"/proc/{lines_of(tmp_path / 'ran-1')[0]}").exists())
    assert witness.end is not None and sorted(trial.params["x"] for trial in witness.end.study.trials) == [1, 2, 3]


@pytest.mark.slow
def test_a_study_continues_after_its_only_tuner_was_killed(server: PostgresqlServer, tmp_path: Path) -> None:
    command, witness = hanging_at_first(tmp_path), Witness()
    doomed = start_tuner("alone", tmp_path, server.url, command)
    try:
        eventually(lambda: bool(lines_of(tmp_path / "ran-1")))
    finally:
        doomed.kill()
        doomed.wait()
    (tmp_path / "go").touch()
    options: dict[str, Any] = {"db_path": server.url, "study_name": "alone", "resume": True, "baseline": False}
    assert tune(tmp_path, command, **options, listener=witness).optimize()[0] == 3.0
    assert [len(lines_of(tmp_path / f"ran-{x}")) for x in (1, 2, 3)] == [2, 1, 1]
    assert any(mentions(note, "trial 0", "again") for note in witness.notes)


@pytest.mark.slow
def test_an_interrupt_ends_a_tuner_that_waits_for_another(server: PostgresqlServer, tmp_path: Path) -> None:
    command = hanging_at_first(tmp_path)
    first = start_tuner("waits", tmp_path, server.url, command)
    try:
        eventually(lambda: bool(lines_of(tmp_path / "ran-1")))
        second = start_tuner("waits", tmp_path, server.url, command)
        try:
            eventually(lambda: bool(lines_of(tmp_path / "ran-3")))
            second.send_signal(signal.SIGINT)
            assert second.wait(timeout=500) != 0
        finally:
            second.kill()
            second.wait()
        assert first.poll() is None
        first.send_signal(signal.SIGINT)
        assert first.wait(timeout=500) != 0
    finally:
        first.kill()
        first.wait()
    assert [len(lines_of(tmp_path / f"ran-{x}")) for x in (1, 2, 3)] == [1, 1, 1]


def test_tuners_that_start_together_make_one_study_and_share_it(server: PostgresqlServer, tmp_path: Path) -> None:
    command = f"sh -c 'echo {{x}} >> {tmp_path}/ran; echo value: {{x}}'"
    options: dict[str, Any] = {
        "db_path": server.url,
        "study_name": "together",
        "resume": True,
        "confirm": True,
    }
    tuners = [tune(tmp_path, command, parallel=2, **options) for _ in range(4)]
    values: list[float | None] = []
    threads = [threading.Thread(target=lambda tuner=tuner: values.append(tuner.optimize()[0])) for tuner in tuners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=500)
    assert values == [3.0] * 4
    assert sorted(lines_of(tmp_path / "ran")) == ["1", "2", "3", "3"]  # the best once more, alone
    assert rows(server.url, "select count(*) from studies where study_name = 'together'") == [(1,)]
    view = find_study("together", db=server.url).view()
    assert [trial.trial.outcome for trial in view.trials] == [Outcome.OK] * 4
    left = "select count(*) from zenithtune_tuners join studies using (study_id) where study_name = 'together'"
    assert rows(server.url, left) == [(0,)]


def test_a_study_is_joined_only_by_resume_and_with_the_same_command(server: PostgresqlServer, tmp_path: Path) -> None:
    tune(tmp_path, db_path=server.url, study_name="header").optimize()
    with pytest.raises(StudyError, match=r"postgresql://tuner:\*\*\*@.*--resume"):
        tune(tmp_path, db_path=server.url, study_name="header").optimize()
    with pytest.raises(StudyError, match="command"):
        tune(tmp_path, PRINT_X + " other", db_path=server.url, study_name="header", resume=True).optimize()


def test_a_failed_trial_is_run_again_where_that_is_asked_for(server: PostgresqlServer, tmp_path: Path) -> None:
    command = f"sh -c 'echo {{x}} >> {tmp_path}/ran; echo value: {{x}}; [ {{x}} != 2 ]'"
    options: dict[str, Any] = {"db_path": server.url, "study_name": "failed"}
    tune(tmp_path, command, **options).optimize()
    for _ in range(2):
        tune(tmp_path, command, resume=True, retry_failed=True, **options).optimize()
    tune(tmp_path, command, resume=True, **options).optimize()
    assert lines_of(tmp_path / "ran") == ["1", "2", "3", "2", "2"]


def test_the_budget_is_one_for_all_tuners(server: PostgresqlServer, tmp_path: Path) -> None:
    tune(tmp_path, db_path=server.url, study_name="budget").optimize(2)
    witness = Witness()
    again = tune(tmp_path, db_path=server.url, study_name="budget", resume=True, listener=witness)
    again.optimize(2)
    assert witness.trials == [] and witness.end is not None
    assert mentions(witness.end.why, "budget", "2 runs")
    assert len(witness.end.study.trials) == 2


@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        ({"password": "wrong-word"}, "password authentication failed"),
        ({"database": "nowhere"}, 'database "nowhere" does not exist'),
        ({"host": "nohost.invalid"}, "resolve"),
        ({"port": "1"}, "refused"),
    ],
)
def test_a_wrong_address_is_one_line_without_the_password(
    server: PostgresqlServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    mistake: dict[str, str],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    host, port = mistake.pop("host", "127.0.0.1"), mistake.pop("port", str(server.port))
    url = server.url_of(**mistake).replace(f"127.0.0.1:{server.port}", f"{host}:{port}")
    done = running("optimize", capsys)("--preset", "demo", "--db", url, "--", "sh", "train.sh")
    assert done.code == 2
    assert said in done.err and len(done.err.splitlines()) == 1
    assert ":***@" in done.err and PASSWORD not in done.err and "wrong-word" not in done.err


def test_many_claims_at_once_spend_exactly_the_budget(server: PostgresqlServer, tmp_path: Path) -> None:
    mine: list[str] = []

    def claim(record: StudyRecord) -> None:
        assert record.claims is not None
        for index in range(20):
            run = run_key(RunKey(f"run {index}"))
            try:
                if record.claims.take(run, 10):
                    mine.append(run)
            except TrialExhausted:
                return

    with ExitStack() as stack:
        records = [stack.enter_context(opened(server.url, tmp_path, "claims")) for _ in range(4)]
        threads = [threading.Thread(target=claim, args=(record,)) for record in records]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=500)
    assert len(mine) == len(set(mine)) == 10


def test_a_tuner_that_falls_silent_loses_its_trial_to_another(server: PostgresqlServer, tmp_path: Path) -> None:
    ended: list[Trial] = []

    def recover(left: Trial) -> bool:
        cancelled = replace(left, outcome=Outcome.CANCELLED, cause="the tuner was killed")
        ended.append(cancelled)
        assert lively.finish(cancelled)
        return False

    silent_rhythm = Rhythm(beat_s=1000, stale_s=1000, poll_s=0.05)
    lively_rhythm = Rhythm(beat_s=0.1, stale_s=1, poll_s=0.05)
    with (
        opened(server.url, tmp_path, "silent") as silent,
        opened(server.url, tmp_path, "silent") as lively,
        joined(silent, silent_rhythm, lambda left: pytest.fail("nobody else is dead")) as first,
        joined(lively, lively_rhythm, recover) as second,
    ):
        assert first.ask(RunKey("train --x 1")) is None
        number = silent.start({}, {}, RunKey("train --x 1"))
        first.own(number)
        answer = second.ask(RunKey("train --x 1"))
        assert answer is not None
        assert answer.result(timeout=500) is None  # it is to run there
        assert [trial.number for trial in ended] == [number]
        measured = Trial(params={}, outcome=Outcome.OK, value=1.0, number=number, identity="train --x 1")
        assert not silent.finish(measured)
        # Whoever lost a trial hears of what became of it.
        theirs = first.ask(RunKey("train --x 1"))
        again = lively.start({}, {}, RunKey("train --x 1"))
        second.own(again)
        assert lively.finish(replace(measured, number=again, value=2.0))
        assert theirs is not None
        trial = theirs.result(timeout=500)
        assert trial is not None and (trial.value, trial.number) == (2.0, again)


def test_a_tuner_takes_the_result_of_whoever_took_its_trial(server: PostgresqlServer, tmp_path: Path) -> None:
    command, witness, found = hanging_at_first(tmp_path), Witness(), []
    command = command.replace("sleep 600", f"until [ -e {tmp_path}/go ]; do sleep 0.1; done")
    tuner = tune(
        *(tmp_path, command, ToyPreset([1])), db_path=server.url, study_name="taken", baseline=False, listener=witness
    )
    tuning = threading.Thread(target=lambda: found.append(tuner.optimize()[1]), daemon=True)
    tuning.start()
    eventually(lambda: bool(lines_of(tmp_path / "ran-1")))
    ended: list[Trial] = []

    def recover(left: Trial) -> bool:
        ended.append(left)
        return not taker.finish(replace(left, outcome=Outcome.CANCELLED))

    rhythm = Rhythm(beat_s=0.1, stale_s=0.1, poll_s=0.05)
    header = find_study("taken", db=server.url).view().header
    with opened(server.url, tmp_path, "taken", header) as taker, joined(taker, rhythm, recover) as others:
        eventually(lambda: bool(ended))
        answer = others.ask(ended[0].key)
        assert answer is None or answer.result(timeout=500) is None  # it is the taker's now
        (tmp_path / "go").touch()
        eventually(lambda: any("taken over" in note for note in witness.notes))
        number = taker.start({"x": 1}, ToyPreset([1]).get_search_space(), ended[0].key)
        taker.finish(replace(ended[0], outcome=Outcome.OK, value=9.0, number=number))
        tuning.join(timeout=500)
    assert found == [{"x": 1}]
    assert witness.end is not None and witness.end.study.best is not None
    assert (witness.end.study.best.number, witness.end.study.best.value) == (number, 9.0)


def test_a_trial_whose_commit_was_not_answered_is_written_once(server: PostgresqlServer, tmp_path: Path) -> None:
    with opened(server.url, tmp_path, "once") as record:
        assert record.claims is not None
        record.claims.take(run_key(RunKey("train")), None)
        engine = record._storage.engine

        def lose_the_answer(action: Any) -> Any:
            action()
            record._storage.create_new_trial(study_id, template_trial=template)  # as Optuna tries again, by itself
            with pytest.raises(sqlalchemy.exc.SQLAlchemyError), engine.connect() as connection:
                connection.execute(sqlalchemy.text("select pg_terminate_backend(pg_backend_pid())"))
            return action()

        template = create_trial(state=TrialState.RUNNING, user_attrs={"run": {"claim": "the-claim"}})
        study_id = record._study_id
        assert create_once(record._storage, record._study, study_id, template, lose_the_answer) == 0
        assert [trial.number for trial in record.unfinished()] == [0]
        assert record.finished() == []
        assert rows(server.url, "select state from trials join studies using (study_id) where study_name = 'once' "
                    "order by number") == [("RUNNING",), ("FAIL",)]  # fmt: skip
        assert [view.trial.number for view in find_study("once", db=server.url).view().trials] == [0]


def test_a_result_whose_commit_was_not_answered_is_written_once(server: PostgresqlServer, tmp_path: Path) -> None:
    with opened(server.url, tmp_path, "result") as record:
        assert record.claims is not None
        record.claims.take(run_key(RunKey("train")), None)
        number = record.start({}, {}, RunKey("train"))
        trial = Trial(params={}, outcome=Outcome.OK, value=1.5, number=number, identity="train")
        assert record.finish(trial)
        assert record.finish(trial)
        assert not record.finish(replace(trial, value=2.5, cause="another tuner's word"))
        assert [(each.number, each.value) for each in record.finished()] == [(number, 1.5)]


def test_a_study_that_was_deleted_is_begun_anew_without_its_claims(server: PostgresqlServer, tmp_path: Path) -> None:
    command = f"sh -c 'echo {{x}} >> {tmp_path}/ran; echo value: {{x}}'"
    tune(tmp_path / "first", command, db_path=server.url, study_name="deleted").optimize()
    storage = optuna.storages.RDBStorage(driver_url(server.url))
    storage.delete_study(storage.get_study_id_from_name("deleted"))
    storage.engine.dispose()
    tune(tmp_path / "second", command, db_path=server.url, study_name="deleted").optimize()
    assert lines_of(tmp_path / "ran") == ["1", "2", "3"] * 2
