"""The examples of storage."""

from __future__ import annotations

from zenith_tune.record.storage import database_url


def test_a_path_becomes_an_sqlite_address() -> None:
    assert database_url("out/studies.db") == "sqlite:///out/studies.db"
