"""Waits for a database that is away: a server that restarts or is too busy, a file that another program has locked."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

from zenith_tune.errors import StudyError
from zenith_tune.record.server.url import database_path, is_server, shown
from zenith_tune.study.faults import RetryPolicy, disk_full

_STAYS = ("28", "3D", "53100", "53200")
"""Beginnings of SQLSTATE codes that waiting does not fix: who asks, for which database, no space, no memory."""
_LOCKED = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
_PASSING = ("SQLITE_CANTOPEN", "SQLITE_IOERR", "SQLITE_NOMEM")
_FULL = "SQLITE_FULL"
"""SQLite's names of what may pass: a lock of another program, a system or a disk that refuses for a while."""
_MOMENTARY = ("starting up", "shutting down", "recovery mode", "not yet accepting", "too many")


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
        # Every connection of the pool is in use; or one broke under a read, and Optuna went on to use it.
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
    return is_away(error) and any(word in in_one_line(error) for word in _MOMENTARY)


def in_one_line(error: BaseException) -> str:
    """Return what the server or its driver said, without what SQLAlchemy and Optuna say around it."""
    last = list(_causes(error))[-1]
    return next((line.strip() for line in str(last).splitlines() if line.strip()), type(last).__name__)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__
