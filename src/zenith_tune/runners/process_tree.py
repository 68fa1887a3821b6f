"""A trial's processes: its group, its descendants, and those that left the group but carry its mark."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MARK = "ZENITHTUNE_TRIAL_FOLDER"
"""The environment variable that every process of a trial inherits, also one that called setsid."""

_PROC = Path("/proc")
_POLL_S = 0.02  # only while ending a tree: a running trial is waited for, not polled


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Tell a process from a later one with the same pid, also after a reboot or on another host."""

    boot_id: str
    pid: int
    start_ticks: int

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """Read what the trial's own shell wrote: the boot id and its line of /proc/PID/stat."""
        boot_id, _, stat = text.strip().partition("\n")
        fields = _stat_fields(stat)
        return cls(boot_id=boot_id, pid=int(fields[0]), start_ticks=int(fields[21])) if len(fields) > 21 else None

    def is_alive(self) -> bool:
        """Tell whether this very process still runs."""
        fields = _read_stat(self.pid)
        same = bool(fields) and self.boot_id == _boot_id() and int(fields[21]) == self.start_ticks
        return same and fields[2] != "Z"


class ProcessTree:
    """Find and end every process of the trial whose folder is `folder`."""

    def __init__(self, folder: Path, leader: int | None) -> None:
        self._mark = f"{MARK}={folder}".encode()
        self._leader = leader

    def members(self) -> set[int]:
        """Return the pids that still run: leader, its session and group, descendants, and marked ones."""
        table = {pid: fields for pid in _all_pids() if (fields := _read_stat(pid)) and fields[2] not in "ZX"}
        found = {pid for pid, fields in table.items() if self._belongs(pid, fields)}
        grown = True
        while grown:
            children = {pid for pid, fields in table.items() if int(fields[3]) in found}
            grown = not children <= found
            found |= children
        return found - {os.getpid()}

    def end(self, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask every process to stop, wait `grace_s` (less if `hurry()`), then kill what is left."""
        left = self.members()
        if not left:
            return
        self._signal(left, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while (left := self.members()) and time.monotonic() < deadline and not hurry():
            time.sleep(_POLL_S)
        # A process may fork between the look and the kill, so look again until none is left.
        deadline = time.monotonic() + 10
        while left and time.monotonic() < deadline:
            self._signal(left, signal.SIGKILL)
            time.sleep(_POLL_S)
            left = self.members()

    def _belongs(self, pid: int, fields: list[str]) -> bool:
        if self._leader is not None and self._leader in (pid, int(fields[4]), int(fields[5])):
            return True
        return _has_mark(pid, self._mark)

    def _signal(self, pids: set[int], signum: int) -> None:
        if not _PROC.exists() and self._leader is not None:  # no /proc: the group is all that can be reached
            with _ignoring_gone():
                os.killpg(self._leader, signum)
        for pid in pids:
            with _ignoring_gone():
                os.kill(pid, signum)


class _ignoring_gone:  # noqa: N801 - reads as a statement
    """Ignore that a process went away by itself."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return isinstance(error, ProcessLookupError | PermissionError)


def _all_pids() -> list[int]:
    if not _PROC.exists():
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - plain names are quicker


def _read_stat(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - called for every process of the host
            return _stat_fields(file.read().decode(errors="replace"))
    except OSError:
        return []


def _stat_fields(line: str) -> list[str]:
    """Split a line of /proc/PID/stat; the second field is a name in brackets that may hold anything."""
    head, _, tail = line.rpartition(")")
    pid, _, name = head.partition("(")
    return [pid.strip(), name, *tail.split()] if tail else []


def _has_mark(pid: int, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123 - called for every process of the host
            return mark in file.read().split(b"\0")
    except OSError:
        return False


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
