"""Opens Optuna storage, waits for a database that is away for a while, and turns failures into one clear line."""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from zenith_tune.errors import StudyError, UsageError
from zenith_tune.record.server.url import (
    connect_args,
    database_path,
    driver_url,
    is_server,
    make_tables,
    one_at_a_time,
    passwords,
    shown,
)
from zenith_tune.shell.secrets import find_secrets, mask
from zenith_tune.study.faults import RetryPolicy, disk_full, is_disk_full
from zenith_tune.study.files import path_as_written
from zenith_tune.study.optuna_types import quiet_optuna

if TYPE_CHECKING:
    from optuna.storages import RDBStorage


_STAYS = ("28", "3D", "53100", "53200")
"""Beginnings of SQLSTATE codes that waiting does not fix: who asks, for which database, no space, no memory."""
_LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
_PASSING = ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_NOMEM")
_FULL = "SQLITE_FULL"
"""SQLite's names of what may pass: a lock of another program, a system or a disk that refuses for a while."""


def database_patience(url: str, notify: Callable[[str], None], has_worked: Callable[[], bool]) -> RetryPolicy:
    """Return what waits for a database that is away for a while, and then ends the study.

    A file that cannot be opened or written is waited for only where it `has_worked` before: a lock passes in any case.
    """
    name = str(database_path(url) or shown(url))

    def is_passing(error: Exception) -> bool:
        return is_away(error) and (is_server(url) or has_worked() or _sqlite_error(error) in _LOCKED)

    def give_up(problem: str, error: Exception) -> Exception:
        if _sqlite_error(error) == _FULL:
            return disk_full(name)
        return StudyError(problem, hint="see to it, then continue with --resume; no finished trial is lost")

    return RetryPolicy(
        f"the database {name}",
        is_passing,
        notify,
        away="does not answer",
        back="answers again",
        describe=in_one_line,
        give_up=give_up,
    )


def is_away(error: Exception) -> bool:
    """Tell whether a database did not answer, for a reason that may pass."""
    import sqlalchemy.exc

    for cause in _causes(error):
        # Every connection of the pool is in use; or one broke under a read, and Optuna continued to use it.
        if isinstance(cause, sqlalchemy.exc.TimeoutError | sqlalchemy.exc.PendingRollbackError):
            return True
        if isinstance(cause, sqlalchemy.exc.DBAPIError):
            if isinstance(cause.orig, sqlite3.Error):
                return _sqlite_error(error) in (*_LOCKED, *_PASSING, _FULL)
            code = str(getattr(cause.orig, "sqlstate", None) or getattr(cause.orig, "pgcode", None) or "")
            is_broken = isinstance(cause, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError)
            return (is_broken or cause.connection_invalidated) and not code.startswith(_STAYS)
    return False


def _sqlite_error(error: Exception) -> str:
    """Return what SQLite calls an error, without its finer kind: SQLITE_IOERR of SQLITE_IOERR_WRITE."""
    names = (getattr(getattr(cause, "orig", cause), "sqlite_errorname", "") for cause in _causes(error))
    return "_".join(next(filter(None, names), "").split("_")[:2])


def is_momentary(error: Exception) -> bool:
    """Tell whether a server that was never reached before is there, and will take connections soon."""
    soon = ("starting up", "shutting down", "recovery mode", "not yet accepting", "too many")
    return is_away(error) and any(phrase in in_one_line(error) for phrase in soon)


def in_one_line(error: BaseException) -> str:
    """Return what the server or its driver said, without what SQLAlchemy and Optuna say around it."""
    last = list(_causes(error))[-1]
    return next((line.strip() for line in str(last).splitlines() if line.strip()), type(last).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__


_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a file system answers that has no locks, as some network file systems are mounted."""
_BUSY_S = 10.0
"""How long a reader waits for a writer that is in the middle of a commit."""
_START_S, _START_WAIT_S = 30.0, 0.5
"""How long a server that is just starting is waited for, and how often it is asked."""


def database_url(db: str | Path) -> str:
    """Return a storage URL for a path or a URL."""
    if "://" in str(db):
        return str(db)
    path = expanded(db)
    if odd := set(str(path)) & set("?%#{}"):
        raise StudyError(
            f"the path of a database must not hold {' '.join(sorted(odd))}, but got {path}: choose another"
        )
    return f"sqlite:///{path}"


def expanded(path: str | Path) -> Path:
    """Return a path with its `~` expanded."""
    try:
        return path_as_written(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{path} cannot be expanded ({error})", hint="write the path out") from error


def open_storage(url: str) -> RDBStorage:
    """Open or create the database, refusing a file that is none."""
    path = database_path(url)
    if path is None:
        with clear_errors(url), quiet_optuna():
            return _open_server(url)
    check_database_file(path)
    # Tuners that start together make the tables one after the other.
    with clear_errors(url), quiet_optuna(), open_beside(path, f".{path.name}.lock") as lock:
        from optuna.storages import RDBStorage

        lock_if_possible(lock, fcntl.LOCK_EX)
        return RDBStorage(url)


@contextmanager
def opened_storage(url: str) -> Iterator[RDBStorage]:
    """Open or create the database, and close it at the end, also where reading or writing it fails."""
    storage = open_storage(url)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def open_for_reading(url: str) -> RDBStorage:
    """Open a database that is there, to read it; between two looks no connection is held.

    An SQLite file is opened for writing, which SQLite needs to take back a commit that a kill cut off.
    """
    import sqlalchemy
    from optuna.storages import RDBStorage

    path = database_path(url)
    if path is None:
        address, arguments = driver_url(url), dict[str, Any](connect_args(url))
    else:
        if not path.is_file():
            hint = "give --output-dir or --db of the study, or its folder"
            raise StudyError(f"there is no database {path}", hint=hint)
        check_database_file(path)
        address, arguments = f"sqlite:///{path.absolute().as_uri()}?mode=rw&uri=true", {"timeout": _BUSY_S}
    options = {"poolclass": sqlalchemy.pool.NullPool, "connect_args": arguments}
    with clear_errors(url), quiet_optuna():
        return RDBStorage(address, options, skip_compatibility_check=True, skip_table_creation=True)


def _open_server(url: str) -> RDBStorage:
    """Open a server's database; one that is just starting is waited for, any other failure is raised at once."""
    import sqlalchemy
    from optuna.storages import RDBStorage

    address = driver_url(url)
    try:
        sqlalchemy.engine.make_url(address)
    except (ValueError, sqlalchemy.exc.ArgumentError):
        problem = f"a server's --db must be postgresql://USER@HOST:PORT/DATABASE, but got {shown(url)}"
        raise UsageError(f"{problem}: correct it") from None
    # Two connections are held, for many tuners share what the server has to give.
    options = {"pool_pre_ping": True, "pool_size": 2, "max_overflow": 8, "connect_args": connect_args(url)}
    gate = sqlalchemy.create_engine(address, poolclass=sqlalchemy.pool.NullPool, connect_args=connect_args(url))
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with one_at_a_time(gate):
                storage = RDBStorage(address, engine_kwargs=options)
                make_tables(storage.engine)
                return storage
        except sqlalchemy.exc.SQLAlchemyError as error:
            if not is_momentary(error) or time.monotonic() > deadline:
                raise
            time.sleep(_START_WAIT_S)


def lock_if_possible(file: IO[str], operation: int) -> None:
    """Lock a file where its file system can: elsewhere the database says who tunes a study."""
    try:
        fcntl.flock(file, operation)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def open_beside(database: Path, name: str) -> IO[str]:
    """Open a lock file in the database's folder, or say in one line why that cannot be."""
    path = database.resolve().with_name(name)
    mode = stat.S_IMODE(database.stat().st_mode) if database.exists() else 0o600
    try:
        return open(path, "a+", opener=lambda name, flags: os.open(name, flags, mode))
    except OSError as error:
        if is_disk_full(error):
            raise disk_full(path) from error
        raise StudyError(f"{path.parent} cannot be written ({error.strerror})", hint="choose another --db") from error


@contextmanager
def clear_errors(url: str) -> Iterator[None]:
    """Turn what the database raises into one line."""
    import sqlalchemy.exc
    from optuna.exceptions import StorageInternalError

    try:
        yield
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError, RuntimeError, ImportError) as error:
        raise _explain(error, url) from error


def check_database_file(path: Path) -> None:
    """Refuse a path that cannot be a database, before anything is written."""
    if path.exists() and not path.is_file():
        raise StudyError(f"--db must be a database file, but {path} is none")
    if not path.parent.is_dir():
        raise StudyError(f"the folder of the database {path} does not exist", hint="make it, or choose another --db")
    if path.exists() and path.stat().st_size:
        with path.open("rb") as file:
            first = file.read(16)
        if first != b"SQLite format 3\0":
            hint = f"choose another --db, or rebuild a damaged one by zenithtune recover {path.parent}"
            raise StudyError(f"{path} is no study database (not an SQLite file)", hint=hint)


def _explain(error: Exception, url: str) -> Exception:
    text = " ".join(str(cause) for cause in (error, error.__cause__, error.__context__) if cause)
    where = database_path(url) or shown(url)
    if isinstance(error, ImportError):
        return StudyError(f"the database {where} needs a driver that is not installed ({error})")
    if "disk is full" in text or "disk I/O error" in text:
        return disk_full(where)
    if is_server(url):
        said = mask(in_one_line(error), [*find_secrets(url), *passwords(url)])
        problem = f"the database {where} cannot be used ({said})"
        return StudyError(problem, hint="check the host, the user, the password and the database in --db")
    if "malformed" in text or "not a database" in text:
        hint = f"rebuild it by zenithtune recover {Path(where).parent}"
        return StudyError(f"the database {where} is damaged ({in_one_line(error)})", hint=hint)
    first = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    what = "written" if "readonly" in text or "unable to open" in text else "used"
    return StudyError(f"the database {where} cannot be {what} ({first})", hint="choose another --db or --output-dir")
