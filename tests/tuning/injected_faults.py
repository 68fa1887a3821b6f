"""Makes the system refuse: the so-many-th call that writes or starts something fails, once or for a while."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FAULTS = (
    *(errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM, errno.EROFS),
    *(errno.ESTALE, errno.EIO, errno.ENOSPC, errno.EPERM),
)
_PATHS = {"open", "os.mkdir", "os.rename", "os.remove", "os.chmod", "os.truncate", "os.listdir", "os.scandir"}
_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.fork"}


@dataclass(slots=True)
class FaultInjection:
    """Count the calls on a folder and those that start processes, and let some of them fail."""

    folder: str
    first: int = 0
    """Which call is the first to fail, counted from 1; none where it is 0."""
    count: int = 1
    code: int = errno.EIO
    calls: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _PATHS:
            name = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
            if not name.startswith(self.folder):
                return
            event = f"{event} {name}"
        elif event not in _STARTS:
            return
        self.calls.append(event)
        if self.first <= len(self.calls) < self.first + self.count and self.first:
            self.failed.append(event)
            raise OSError(self.code, os.strerror(self.code), event)


_active: list[FaultInjection] = []


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _active:
        _active[-1].audit(event, arguments)


_installed: list[bool] = []


@contextmanager
def injected_fault(folder: Path, first: int = 0, count: int = 1, code: int = errno.EIO) -> Iterator[FaultInjection]:
    """Inject faults while the block runs; an audit hook stays for ever, and does nothing afterwards."""
    if not _installed:
        sys.addaudithook(_hook)
        _installed.append(True)
    injection = FaultInjection(str(folder), first, count, code)
    _active.append(injection)
    try:
        yield injection
    finally:
        _active.remove(injection)
