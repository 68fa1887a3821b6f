"""The examples of url."""

from __future__ import annotations

from pathlib import Path

from zenith_tune.record.server.url import database_path, is_server, passwords, shown


def test_a_server_is_known_by_its_address() -> None:
    assert is_server("postgresql://host/studies")
    assert not is_server("sqlite:///studies.db")


def test_the_file_of_an_sqlite_address_is_found() -> None:
    assert database_path("sqlite+pysqlite:///out/studies.db?timeout=9") == Path("out/studies.db")


def test_a_password_is_looked_for_in_pieces() -> None:
    assert passwords("postgresql://me:a/long#one@host/studies") == ["a/long#one", "long", "one"]


def test_an_address_is_shown_without_its_password() -> None:
    assert shown("postgresql://me:pw@host/studies?password=pw") == "postgresql://me:***@host/studies?password=***"
