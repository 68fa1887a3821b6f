"""A study on a real PostgreSQL server, followed by a page that never hears its password."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.postgresql_server import PASSWORD, PostgresqlServer, postgresql_programs
from tests.requirements import need_module
from tests.serve.served import serving_of
from tests.started_processes import wait_until
from tests.study_tools import tune
from tests.toy_preset import ToyPreset
from zenith_tune.record.reader import study_names
from zenith_tune.serve.study_index import StudyIndex

pytestmark = pytest.mark.slow

SLOW = "sh -c 'sleep {x}; echo value: {x}'"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    need_module("postgresql", "psycopg")
    server = PostgresqlServer(postgresql_programs())
    server.start()
    yield server
    server.close()


def test_a_study_on_a_server_is_followed_and_a_server_that_is_away_is_reported(
    server: PostgresqlServer, tmp_path: Path
) -> None:
    tuner = tune(tmp_path, SLOW, ToyPreset([60, 0.1]), baseline=False, db_path=server.url)
    thread = threading.Thread(target=tuner.optimize)
    thread.start()
    wait_until(lambda: (tmp_path / "out" / "s" / "trials" / "0000" / "log.txt").exists())
    assert study_names(server.url) == ["s"]
    with serving_of(StudyIndex.open(None, db=server.url, output_dir=None, look_s=0.2), look_s=0.2) as client:
        reported = client.get("/data.json")
        assert reported.json()["live"]["state"] == "running" and PASSWORD not in reported.text
        assert PASSWORD not in client.get("/").text
        with client.events() as events:
            assert next(events)["trials"][0]["state"] == "running"
            assert client.post("/trial/0/cancel").status == 202
            wait_until(lambda: [t["state"] for t in client.get("/data.json").json()["trials"]] == ["cancelled", "ok"])
            thread.join(20)
            server.strike_down()
            problem = next(
                live["problem"] for news in events if (live := news["fields"].get("live", {})).get("problem")
            )
            assert PASSWORD not in problem
            server.launch()
            # What is wrong may change on the way: no connection, then a server that is starting.
            states = (news["fields"]["live"]["state"] for news in events if "live" in news["fields"])
            assert next(state for state in states if state != "unreadable") == "running"
