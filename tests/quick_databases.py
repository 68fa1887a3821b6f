"""Databases that are made as always, but faster."""

from __future__ import annotations

import contextlib
import functools
import importlib
import sqlite3
import threading
from collections.abc import Iterator
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

_COPYING = threading.Lock()
_COMPILED: Any = sqlalchemy.util.LRUCache(5000)


@functools.cache
def make_databases_quick() -> None:
    """Do once in this process what each new database repeats, and do not wait for the disk: no test cuts the power."""
    sqlalchemy.event.listen(sqlalchemy.Engine, "connect", _do_not_sync)
    _read_revisions_once()
    _compile_statements_once()
    _make_tables_once()
    _record_a_study()


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


def _record_a_study() -> None:
    """Record a trial, so that statements are compiled and tables mapped before this process is forked."""
    from optuna.distributions import CategoricalDistribution
    from optuna.storages import RDBStorage
    from optuna.study import StudyDirection
    from optuna.trial import TrialState, create_trial

    with _quiet(), TemporaryDirectory() as folder:
        storage = RDBStorage(f"sqlite:///{folder}/study.db")
        study = storage.create_new_study([StudyDirection.MINIMIZE], "study")
        storage.set_study_user_attr(study, "key", "value")
        size = CategoricalDistribution([1, 2])
        storage.create_new_trial(study, create_trial(value=1.0, params={"size": 1}, distributions={"size": size}))
        trial = storage.create_new_trial(study)
        storage.set_trial_param(trial, "size", 0.0, size)
        for _ in range(2):
            storage.set_trial_user_attr(trial, "key", "value")
            storage.set_trial_system_attr(trial, "key", "value")
        storage.set_trial_state_values(trial, TrialState.COMPLETE, [1.0])
        storage.get_all_studies()
        storage.get_study_name_from_id(study)
        storage.get_study_id_from_name("study")
        storage.get_study_directions(study)
        storage.get_study_user_attrs(study)
        storage.get_study_system_attrs(study)
        storage.get_all_trials(study)
        storage.get_best_trial(study)
        storage.remove_session()
        storage.engine.dispose()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    import optuna

    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(level)


def _template() -> sqlite3.Connection:
    import optuna

    with _quiet(), TemporaryDirectory() as folder:
        optuna.storages.RDBStorage(f"sqlite:///{folder}/study.db").engine.dispose()
        template = sqlite3.connect(":memory:", check_same_thread=False)
        file = sqlite3.connect(f"{folder}/study.db")
        file.backup(template)
        file.close()
    return template
