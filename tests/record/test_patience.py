from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy.exc import IntegrityError, OperationalError

from zenith_tune.errors import StudyError
from zenith_tune.record.storage import database_patience, is_away, is_momentary

URL = "postgresql://me:hunter2-of-mine@host/studies"


class DriverError(Exception):
    """Stand for what a driver raises."""

    def __init__(self, text: str, sqlstate: str | None = None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


def failure(text: str = "connection refused", sqlstate: str | None = None) -> OperationalError:
    said = DriverError(text, sqlstate)
    error = OperationalError("select 1", None, said)
    error.__cause__ = said
    return error


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [error] * times

    def action() -> str:
        if left:
            raise left.pop()
        return "answer"

    return action


def test_an_outage_is_waited_for_and_reported_once() -> None:
    lines: list[str] = []
    policy = replace(database_patience(URL, lines.append, lambda: True), limit_s=20)
    assert policy.call(failing(2, failure())) == "answer"
    waiting, answered = lines
    assert "(connection refused)" in waiting and "20 s" in waiting
    assert "again" in answered and "0 seconds" in answered


def test_patience_ends_and_is_not_tried_a_second_time() -> None:
    patience = replace(database_patience(URL, lambda line: None, lambda: True), limit_s=0.0)
    with pytest.raises(StudyError, match=r"host/studies .* 0 s .*--resume") as gone:
        patience.call(failing(1, failure()))
    assert "hunter2" not in str(gone.value)
    with pytest.raises(StudyError):
        patience.call(failing(1, failure()))


def test_what_is_no_outage_passes_through() -> None:
    patience = database_patience(URL, lambda line: None, lambda: True)
    wrong = IntegrityError("insert", None, DriverError("duplicate key"))
    with pytest.raises(IntegrityError):
        patience.call(failing(1, wrong))


@pytest.mark.parametrize("code", ["28P01", "3D000", "53100"])
def test_a_wrong_password_database_or_full_disk_is_no_outage(code: str) -> None:
    assert not is_away(failure(sqlstate=code))
    assert is_away(failure(sqlstate="57P01"))


def test_a_server_that_starts_is_momentary_and_one_that_refuses_is_not() -> None:
    # PostgreSQL's own text.
    starting = "FATAL:  the database system is starting up"
    assert is_momentary(failure(starting))
    assert not is_momentary(failure("Connection refused"))
