"""A study on a PostgreSQL server, read and reported by somebody who does not tune it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_runs import as_json, running
from tests.engines.postgresql_server import PASSWORD, PostgresqlServer, postgresql_programs
from tests.report.studies import BEST, TRIALS, Recorded, header
from tests.requirements import need_module
from zenith_tune.record.reader import StudyReader
from zenith_tune.record.server.url import driver_url
from zenith_tune.study.optuna_types import quiet_optuna

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    need_module("postgresql", "psycopg")
    server = PostgresqlServer(postgresql_programs())
    server.start()
    yield server
    server.close()


def copied(study: Recorded, name: str, server: PostgresqlServer) -> None:
    """Put a study of a file onto the server, as Optuna moves one."""
    import optuna

    with quiet_optuna():
        target = optuna.storages.RDBStorage(driver_url(server.url))
        optuna.copy_study(
            from_study_name=study.record.study_name, from_storage=study.url, to_storage=target, to_study_name=name
        )
        target.remove_session()
        target.engine.dispose()


def test_a_study_on_a_server_says_the_same_as_one_in_a_file(server: PostgresqlServer, tmp_path: Path) -> None:
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS)
    number = study.start(TRIALS[1])
    copied(study, "read", server)
    view, here = StudyReader(server.url, "read").view(), StudyReader(study.url, "s").view()
    assert [each.trial for each in view.trials] == [each.trial for each in here.trials]
    assert [each.started_s for each in view.trials] == [each.started_s for each in here.trials]
    assert [each.number for each in view.running] == [number]
    assert (view.header, view.direction) == (here.header, here.direction)
    assert PASSWORD not in view.database and "***" in view.database
    study.record.close()


def test_a_study_on_a_server_is_reported(
    server: PostgresqlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS)
    copied(study, "shared", server)
    study.record.close()
    report = running("report", capsys)
    done = report("shared", "--db", server.url, "--format", "json")
    assert as_json(done)["best"] == BEST
    assert PASSWORD not in done.out
    unknown = report("sharde", "--db", server.url)
    assert (unknown.code, unknown.err.count("\n")) == (2, 1)
    assert "'shared'" in unknown.err
    wrong = report("shared", "--db", server.url_of("n0t-the-password"))
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    assert "n0t-the-password" not in wrong.err
