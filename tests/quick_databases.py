"""Databases that are made as always, but faster."""

from __future__ import annotations

import functools
import importlib
import sqlite3
from typing import Any

import sqlalchemy


def make_databases_quick() -> None:
    """Read alembic's revision files once in this process, and do not wait for the disk: no test cuts the power."""
    alembic: Any = importlib.import_module("alembic.util")
    alembic.load_python_file = functools.cache(alembic.load_python_file)
    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", _do_not_sync)


def _do_not_sync(connection: Any, _: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("pragma synchronous = off")
