"""Databases that are made as always, but faster."""

from __future__ import annotations

import functools
import importlib
import sqlite3
import threading
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

_COPYING = threading.Lock()
_COMPILED: Any = sqlalchemy.util.LRUCache(5000)


def make_databases_quick() -> None:
    """Do once in this process what each new database repeats, and do not wait for the disk: no test cuts the power."""
    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", _do_not_sync)
    _read_revisions_once()
    _compile_statements_once()
    _make_tables_once()


def _do_not_sync(connection: Any, _: object) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute("pragma synchronous = off")


def _read_revisions_once() -> None:
    alembic: Any = importlib.import_module("alembic.script")
    original = alembic.ScriptDirectory.from_config

    known: dict[str, Any] = {}

    def from_config(config: Any) -> Any:
        location = config.get_main_option("script_location")
        if location not in known:
            known[location] = original(config)
        return known[location]

    alembic.ScriptDirectory.from_config = from_config


def _compile_statements_once() -> None:
    """Share the compiled statements of all SQLite databases, which SQLAlchemy keeps by dialect and engine."""
    dialect: Any = SQLiteDialect_pysqlite
    dialect.__eq__ = lambda self, other: type(self) is type(other)
    dialect.__hash__ = lambda self: hash(type(self))
    engine: Any = sqlalchemy.Engine
    original = engine.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        if isinstance(self.dialect, SQLiteDialect_pysqlite):
            self._compiled_cache = _COMPILED

    engine.__init__ = init


def _make_tables_once() -> None:
    """Copy the tables of a study's database into a new file; SQLAlchemy makes them where that fails."""
    metadata: Any = importlib.import_module("optuna.storages._rdb.models").BaseModel.metadata
    original = metadata.create_all
    template = _template()

    def create_all(engine: sqlalchemy.Engine) -> None:
        if engine.dialect.name == "sqlite" and engine.url.database:
            try:
                with engine.connect() as connection, _COPYING:
                    file: Any = connection.connection.dbapi_connection
                    if not file.execute("select 1 from sqlite_master").fetchone():
                        template.backup(file)
                        return
            except (sqlite3.Error, sqlalchemy.exc.SQLAlchemyError):
                pass
        original(engine)

    metadata.create_all = create_all


def _template() -> sqlite3.Connection:
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with TemporaryDirectory() as folder:
        optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db").engine.dispose()
        template = sqlite3.connect(":memory:", check_same_thread=False)
        file = sqlite3.connect(f"{folder}/study.db")
        file.backup(template)
        file.close()
    optuna.logging.set_verbosity(level)
    return template
