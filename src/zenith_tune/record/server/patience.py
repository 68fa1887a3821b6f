"""Waits for a database server that is away: restarted, cut off, or too busy for another connection."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from zenith_tune.errors import StudyError
from zenith_tune.record.server.url import shown
from zenith_tune.units import count

T = TypeVar("T")

DEFAULT_PATIENCE_S = 120.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 3.0
_STAYS = ("28", "3D", "53100", "53200")
"""Beginnings of SQLSTATE codes that waiting does not fix: who asks, for which database, no space, no memory."""
_MOMENTARY = ("starting up", "shutting down", "recovery mode", "not yet accepting", "too many")


class RetryPolicy:
    """Try again what a server that was away did not answer; safe to use from several threads.

    A statement that broke off may have been carried out all the same: whatever is called must find that out by itself.
    """

    def __init__(self, url: str, tell: Callable[[str], None], limit_s: float = DEFAULT_PATIENCE_S) -> None:
        self.url = url
        self._tell = tell
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._away_since: float | None = None
        self._has_given_up = False

    def call(self, action: Callable[[], T]) -> T:
        """Return what `action` returns, once the server answers it."""
        begin, wait_s = time.monotonic(), _FIRST_WAIT_S
        while True:
            try:
                answer = action()
            except Exception as error:
                if not is_away(error):
                    raise
                self._note_away(error)
                if self._has_given_up or time.monotonic() - begin >= self._limit_s:
                    self._has_given_up = True  # the study is ending: nothing more is waited for
                    problem = f"the database {shown(self.url)} has not answered for {self._limit_s:.0f} s"
                    hint = "start it, then continue with --resume; no finished trial is lost"
                    raise StudyError(f"{problem} ({in_one_line(error)})", hint=hint) from error
                time.sleep(wait_s)
                wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
            else:
                self._note_back()
                return answer

    def _note_away(self, error: Exception) -> None:
        with self._lock:
            is_news = self._away_since is None
            self._away_since = self._away_since or time.monotonic()
        if is_news:
            problem = f"the database does not answer ({in_one_line(error)})"
            self._tell(f"{problem}: waiting for it, at most {self._limit_s:.0f} s")

    def _note_back(self) -> None:
        if self._away_since is None:
            return
        with self._lock:
            since, self._away_since = self._away_since, None
        if since is not None:
            self._tell(f"the database answers again, after {count(round(time.monotonic() - since), 'second')}")


def is_away(error: Exception) -> bool:
    """Tell whether a server did not answer, for a reason that may pass."""
    import sqlalchemy.exc

    for cause in _causes(error):
        # Every connection of the pool is in use; or one broke under a read, and Optuna went on to use it.
        if isinstance(cause, sqlalchemy.exc.TimeoutError | sqlalchemy.exc.PendingRollbackError):
            return True
        if isinstance(cause, sqlalchemy.exc.DBAPIError):
            code = str(getattr(cause.orig, "sqlstate", None) or getattr(cause.orig, "pgcode", None) or "")
            is_broken = isinstance(cause, sqlalchemy.exc.OperationalError | sqlalchemy.exc.InterfaceError)
            return (is_broken or cause.connection_invalidated) and not code.startswith(_STAYS)
    return False


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
