"""Rows of a study's database, read without changing it: also while another process writes it, and without Optuna."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from zenith_tune.errors import StudyError
from zenith_tune.record.server.url import connect_args, driver_url, is_server
from zenith_tune.record.storage import database_path

Query = Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]]
"""Answer a statement with `:names` in it."""
BUSY_S = 10.0
"""How long a reader waits for a writer that is in the middle of a commit."""


@contextmanager
def reading(url: str) -> Iterator[Query]:
    """Open a database for reading, an SQLite file by itself and a server through its SQLAlchemy driver."""
    path = database_path(url)
    with _sqlite(path) if path is not None else server_rows(url) as query:
        yield query


def study_names(url: str) -> list[str]:
    """Return the names of all studies of a database, those begun last first."""
    with reading(url) as query:
        return [str(name) for (name,) in query("select study_name from studies order by study_id desc", {})]


@contextmanager
def server_rows(url: str) -> Iterator[Query]:
    """Read a database by SQLAlchemy, which Optuna brings along."""
    from zenith_tune.record.storage import clear_errors

    with clear_errors(url):
        import sqlalchemy

        options = {"poolclass": sqlalchemy.pool.NullPool, "connect_args": connect_args(url) if is_server(url) else {}}
        engine = sqlalchemy.create_engine(driver_url(url), **options)
        with engine.connect() as connection:

            def query(sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
                return [tuple(row) for row in connection.execute(sqlalchemy.text(sql), dict(values))]

            yield query


@contextmanager
def _sqlite(path: Path) -> Iterator[Query]:
    if not path.is_file():
        raise StudyError(f"there is no database {path}: give --output-dir or --db of the study, or its folder")
    try:
        with closing(_connected(path)) as connection:
            yield lambda sql, values: connection.execute(sql, dict(values)).fetchall()
    except sqlite3.Error as error:
        law = f"the database {path} cannot be read ({error})"
        raise StudyError(f"{law}: give the database of a study, or the folder of one") from error


def _connected(path: Path) -> sqlite3.Connection:
    connection = _connect(path, "ro")
    try:
        connection.execute("select count(*) from sqlite_master")
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        # A tuner was killed in the middle of a commit: SQLite itself takes that back, for which it must write.
        return _connect(path, "rw")
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY_S)
