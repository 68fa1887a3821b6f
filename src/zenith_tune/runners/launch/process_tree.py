"""A trial's processes: its group, its descendants, and those that left the group but carry its mark."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MARK = "ZENITHTUNE_TRIAL_FOLDER"
"""The environment variable that every process of a trial inherits, also one that called setsid."""

_POLL_S = 0.02  # only while ending a tree: a running trial is waited for, not polled
_KILL_S = 10.0
_LATE_S = 0.03
_PR_SET_CHILD_SUBREAPER = 36


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
        try:
            return cls(boot_id=boot_id, pid=int(fields[0]), start_ticks=int(fields[21]))
        except (IndexError, ValueError):  # the trial may have written anything there
            return None

    def is_of_this_boot(self) -> bool:
        """Tell whether the machine has not been started again since."""
        return self.boot_id == _boot_id()

    def is_alive(self) -> bool:
        """Tell whether this very process still runs."""
        fields = _read_stat(self.pid)
        same = bool(fields) and self.is_of_this_boot() and int(fields[21]) == self.start_ticks
        return same and fields[2] != "Z"


def began_ticks(pid: int) -> int:
    """Return when a process began, in clock ticks since boot; 0 where there is none."""
    fields = _read_stat(pid)
    return int(fields[21]) if fields else 0


def ticks_at(time_s: float) -> float:
    """Return when a file was written, in seconds since 1970, in the clock ticks since boot that processes are dated by.

    A few more: files are dated by a clock that is up to 10 ms late.
    """
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return (time_s - booted_s + _LATE_S) * os.sysconf("SC_CLK_TCK")


class ProcessTree:
    """Find and end every process of the trial whose folder is `folder`."""

    def __init__(
        self, folder: Path, leader: int | None, *, since_ticks: int = 0, until_ticks: float = math.inf
    ) -> None:
        """Look for the trial's mark, and for what is in the session or group of `leader`.

        Nothing that had begun before `since_ticks`, when the trial did, is the trial's. Where the leader is gone, only
        what had begun by `until_ticks`, when it still ran, is sure to be of its session.
        """
        self._mark = f"{MARK}={folder}".encode()
        self._leader, self._since_ticks, self._until_ticks = leader, since_ticks, until_ticks

    def members(self) -> set[int]:
        """Return the pids that still run: leader, its session and group, descendants, and marked ones."""
        table = _process_table()
        return _with_descendants({pid for pid, fields in table.items() if self._belongs(pid, fields)}, table)

    def end(self, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask every process to stop, wait `grace_s` (less if `hurry()`), then kill what is left."""
        _end(self.members, grace_s, hurry)

    def _belongs(self, pid: int, fields: list[str]) -> bool:
        began = int(fields[21])
        if began < self._since_ticks:
            return False
        if self._leader in (pid, int(fields[4]), int(fields[5])) and began <= self._until_ticks:
            return True
        return _has_mark(pid, self._mark)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies, in place of the first process."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_adopted(grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
    """End every process that became a child of this one after it shed its trial's mark and session.

    Only while no trial runs that it could belong to. A trial has a session of its own, so what shares the session of
    this process is a child that this program started itself, and is left alone.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return  # no child at all, which is nearly always so: no need to look through all processes
    _end(_adopted, grace_s, hurry)
    for pid, fields in _process_table(with_ended=True).items():
        if _is_adopted(fields):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def _adopted() -> set[int]:
    table = _process_table()
    return _with_descendants({pid for pid, fields in table.items() if _is_adopted(fields)}, table)


def _is_adopted(fields: list[str]) -> bool:
    return int(fields[3]) == os.getpid() and int(fields[5]) != os.getsid(0)


def _end(members: Callable[[], set[int]], grace_s: float, hurry: Callable[[], bool]) -> None:
    left = members()
    if not left:
        return
    _signal(left, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (left := members()) and time.monotonic() < deadline and not hurry():
        time.sleep(_POLL_S)
    # A process may fork between the look and the kill, and a look at all processes takes its time: only a second look
    # that finds none is believed.
    deadline = time.monotonic() + _KILL_S
    num_empty = 0
    while num_empty < 2 and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_S)
        left = members()
        num_empty = 0 if left else num_empty + 1


def _signal(pids: set[int], signum: int) -> None:
    for pid in sorted(pids):  # a shell before its children, or it would report their end in the log
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have gone by itself
            os.kill(pid, signum)


def _process_table(*, with_ended: bool = False) -> dict[int, list[str]]:
    """Return the fields of /proc/PID/stat of every process that runs, or that ended and waits for its parent."""
    table = {pid: fields for pid in _all_pids() if (fields := _read_stat(pid))}
    return table if with_ended else {pid: fields for pid, fields in table.items() if fields[2] not in "ZX"}


def _with_descendants(found: set[int], table: dict[int, list[str]]) -> set[int]:
    grown = bool(found)
    while grown:
        children = {pid for pid, fields in table.items() if int(fields[3]) in found}
        grown = not children <= found
        found = found | children
    return found - {os.getpid()}


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - plain names are quicker


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


# Ends a trial's processes where nothing but a shell can be counted on. $1 is the variable with its value that every
# process of the trial carries in its environment; $2 the tenths of a second between SIGTERM and SIGKILL. A session is
# the trial's where its leader carries the mark, also for those of its processes that shed it.
END_MARKED = """
mark=$1 tenths=$2
members() {
    found=' ' sessions=' '
    for file in $(grep -lzxFe "$mark" /proc/[0-9]*/environ 2>/dev/null); do
        pid=${file#/proc/}; found="$found${pid%/environ} "
    done
    [ "$found" = ' ' ] && return
    for stat in /proc/[0-9]*/stat; do
        { IFS= read -r line < "$stat"; } 2>/dev/null || continue
        pid=${line%% *}
        set -- ${line##*) }
        case "$1" in Z|X) continue;; esac
        case "$found" in *" $4 "*) [ "$pid" = $$ ] || sessions="$sessions$pid ";; esac
    done
    found="$found$sessions"
}
members
[ "$found" = ' ' ] && exit 0
kill -TERM $found 2>/dev/null
while [ "$tenths" -gt 0 ]; do
    members
    [ "$found" = ' ' ] && exit 0
    sleep 0.1; tenths=$((tenths - 1))
done
tries=0
while [ "$tries" -lt 100 ]; do
    members
    [ "$found" = ' ' ] && exit 0
    kill -KILL $found 2>/dev/null
    sleep 0.1; tries=$((tries + 1))
done
exit 1
"""


def end_arguments(value: str, grace_s: float, variable: str = MARK) -> list[str]:
    """Return what END_MARKED is started with.

    >>> end_arguments("trial-1", 5.0)
    ['ZENITHTUNE_TRIAL_FOLDER=trial-1', '50']
    """
    return [f"{variable}={value}", str(round(grace_s * 10))]
