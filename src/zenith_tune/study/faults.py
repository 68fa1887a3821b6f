"""Faults of the system rather than of a trial: recognised, waited for, and reported in one line."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TypeVar

from zenith_tune.errors import DiskFullError, SystemFaultError
from zenith_tune.units import count

T = TypeVar("T")

DEFAULT_PATIENCE_S = 120.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 3.0
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_SYSTEM_FAULTS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.EROFS, errno.ESTALE, errno.EIO, errno.ENOLCK}
    | {errno.ENXIO, errno.ENODEV, errno.ETIMEDOUT, errno.EHOSTDOWN, *_DISK_FULL}
)


def is_system_fault(error: BaseException) -> bool:
    """Tell whether the system refused what it grants at other times: descriptors, memory, processes, a file system."""
    return isinstance(error, OSError) and error.errno in _SYSTEM_FAULTS


def is_disk_full(error: OSError) -> bool:
    """Tell whether a write failed for lack of space, or of quota."""
    return error.errno in _DISK_FULL


def disk_full(path: Path | str) -> DiskFullError:
    """Say that the disk is full, and that nothing recorded is lost."""
    return DiskFullError(f"no space left on the disk of {path}: free some and continue with --resume; no trial is lost")


def stopping_error(problem: str, error: Exception, folder: Path | str) -> SystemFaultError:
    """Return what stops a study that cannot work in `folder`, and says that nothing recorded is lost."""
    if isinstance(error, OSError) and is_disk_full(error):
        return disk_full(folder)
    return SystemFaultError(f"{problem}: see to it and continue with --resume; no trial is lost")


@contextmanager
def clear_faults(folder: Path) -> Iterator[None]:
    """Turn a fault of the system into the error that stops the study."""
    try:
        yield
    except OSError as error:
        if is_system_fault(error):
            raise stopping_error(f"the system refuses ({error})", error, folder) from error
        raise


@dataclass(slots=True)
class RetryPolicy:
    """Repeated tries of what failed for a reason that may pass, for a while; safe to use from several threads.

    What broke off may have been carried out all the same: whatever is called must find that out by itself.
    """

    subject: str
    """What is waited for, as in "the database db does not answer"."""
    is_passing: Callable[[Exception], bool]
    notify: Callable[[str], None]
    _: KW_ONLY
    away: str
    back: str
    give_up: Callable[[str, Exception], Exception]
    """Returns what is raised after the last try, of the problem in one line and the error itself."""
    describe: Callable[[Exception], str] = str
    limit_s: float = field(default_factory=lambda: DEFAULT_PATIENCE_S)
    check: Callable[[], None] = lambda: None
    """Raises where somebody asked to stop meanwhile."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _away_since: float | None = None
    _has_given_up: bool = False

    def call(self, action: Callable[[], T]) -> T:
        """Return what `action` returns, once it can be done."""
        begin, wait_s = time.monotonic(), _FIRST_WAIT_S
        while True:
            try:
                answer = action()
            except Exception as error:
                if not self.is_passing(error):
                    raise
                self._note_away(error)
                if self._has_given_up or time.monotonic() - begin >= self.limit_s:
                    self._has_given_up = True  # the study is ending: nothing more is waited for
                    why = f"({self.describe(error)}), after {self.limit_s:.0f} s of waiting"
                    raise self.give_up(f"{self.subject} {self.away} {why}", error) from error
                self.check()
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
            problem = f"{self.subject} {self.away} ({self.describe(error)})"
            self.notify(f"{problem}: waiting, at most {self.limit_s:.0f} s")

    def _note_back(self) -> None:
        with self._lock:
            since, self._away_since = self._away_since, None
        if since is not None:
            self.notify(f"{self.subject} {self.back}, after {count(round(time.monotonic() - since), 'second')}")


def system_patience(folder: Path, notify: Callable[[str], None], check: Callable[[], None]) -> RetryPolicy:
    """Return what waits while the system refuses to start a trial in `folder`, or to read and write its files.

    The study's own folder may be closed for a while, too; of a trial's files the trial itself may be the reason.
    """

    def is_passing(error: Exception) -> bool:
        return is_system_fault(error) or isinstance(error, PermissionError)

    return RetryPolicy(
        "the system",
        is_passing,
        notify,
        away="refuses",
        back="works again",
        give_up=lambda problem, error: stopping_error(problem, error, folder),
        check=check,
    )
