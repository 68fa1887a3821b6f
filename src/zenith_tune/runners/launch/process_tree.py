"""A trial's processes: its group, its descendants, and those that left the group but carry its mark."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

MARK = "ZENITHTUNE_TRIAL_FOLDER"
"""The environment variable that every process of a trial inherits, also one that called setsid."""

BUILDS = "TORCH_EXTENSIONS_DIR="
"""The environment variable by which torch builds extensions elsewhere than in ~/.cache/torch_extensions."""
_POLL_S = 0.02  # only while ending a tree: a running trial is waited for, not polled
_KILL_S = 10.0


class Process(NamedTuple):
    """A process as its line of /proc/PID/stat shows it."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start_ticks: int
    """Clock ticks from boot to its start, by which it is told from a later one with the same pid."""

    @classmethod
    def parse(cls, line: str) -> Process | None:
        """Read such a line; None for anything else."""
        head, _, tail = line.rpartition(")")  # the second field is a name in brackets that may hold anything
        fields = tail.split()
        try:
            numbers = [int(fields[place]) for place in (1, 2, 3, 19)]
            return cls(int(head.partition("(")[0]), fields[0], *numbers)
        except (IndexError, ValueError):
            return None

    @classmethod
    def read(cls, pid: int) -> Process | None:
        """Return a process, None where there is none; one that has ended and waits for its parent is still there."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - called for every process of the host
                return cls.parse(file.read().decode(errors="replace"))
        except OSError:
            return None

    @property
    def runs(self) -> bool:
        return self.state not in "ZX"


def _all_processes() -> dict[int, Process]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]  # noqa: PTH208 - plain names are quicker
    return {pid: process for pid in pids if (process := Process.read(pid))}


def leader_of(record: str) -> tuple[Process | None, bool]:
    """Return the process that the trial's own shell noted in its record, and whether that very process still runs.

    The record is the boot's id and a line of /proc/PID/stat; None where the machine was started again since then.
    """
    boot_id, _, line = record.strip().partition("\n")
    leader = Process.parse(line)  # the trial may have written anything there
    if leader is None or boot_id != Path("/proc/sys/kernel/random/boot_id").read_text().strip():
        return None, False
    now = Process.read(leader.pid)
    return leader, now is not None and now.runs and now.start_ticks == leader.start_ticks


def ticks_at(time_s: float) -> float:
    """Return a file's date, in seconds since 1970, in the clock ticks since boot that processes are dated by."""
    booted_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    late_s = 0.03  # as late the clock may be that files are dated by
    return (time_s - booted_s + late_s) * os.sysconf("SC_CLK_TCK")


class ProcessTree:
    """Every process of the trial whose folder is `folder`."""

    def __init__(
        self, folder: Path, leader: int | None, *, since_ticks: int = 0, until_ticks: float = math.inf
    ) -> None:
        """Look for the trial's mark, and for what is in the session or group of `leader`.

        Nothing that had begun before `since_ticks`, when the trial did, is the trial's. Where the leader is gone, only
        what had begun by `until_ticks`, when it still ran, is sure to be of its session.
        """
        self._mark = f"{MARK}={folder}".encode()
        self._leader, self._since_ticks, self._until_ticks = leader, since_ticks, until_ticks

    def end(self, grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
        """Ask every process to stop, wait `grace_s` (less if `hurry()`), then kill what is left."""
        _end(self._belongs, grace_s, hurry)

    def _belongs(self, process: Process) -> bool:
        if process.start_ticks < self._since_ticks:
            return False
        is_of_leader = self._leader in (process.pid, process.group, process.session)
        if is_of_leader and process.start_ticks <= self._until_ticks:
            return True
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as file:  # noqa: PTH123 - as above
                return self._mark in file.read().split(b"\0")
        except OSError:
            return False


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent dies, in place of the first process."""
    set_child_subreaper = 36
    ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0)


def end_adopted(grace_s: float, hurry: Callable[[], bool] = lambda: False) -> None:
    """End every process that became a child of this one after it shed its trial's mark and session.

    Only while no trial runs that it could belong to. A trial has a session of its own, so what shares the session of
    this process is a child that this program started itself, and is left alone.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return  # no child at all, which is nearly always so: no need to look through all processes
    _end(_is_adopted, grace_s, hurry)
    for process in _all_processes().values():
        if _is_adopted(process):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _is_adopted(process: Process) -> bool:
    return process.parent == os.getpid() and process.session != os.getsid(0)


def _end(belongs: Callable[[Process], bool], grace_s: float, hurry: Callable[[], bool]) -> None:
    if not (left := _members(belongs)):
        return
    locks = _build_locks(left)
    _signal(left, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while (left := _members(belongs)) and time.monotonic() < deadline and not hurry():
        time.sleep(_POLL_S)
    # A process may fork between the look and the kill, and a look at all processes takes its time: only a second look
    # that finds none is believed.
    deadline = time.monotonic() + _KILL_S
    num_empty = 0
    while num_empty < 2 and time.monotonic() < deadline:
        locks |= _build_locks(left)
        _signal(left, signal.SIGKILL)
        time.sleep(_POLL_S)
        left = _members(belongs)
        num_empty = 0 if left else num_empty + 1
    for lock, inode in locks:
        with contextlib.suppress(OSError):
            if lock.stat().st_ino == inode:  # else it was released, and is another's
                lock.unlink()


def _build_locks(pids: set[int]) -> set[tuple[Path, int]]:
    """Return the locks under which processes build extensions of torch, with their inodes.

    torch holds such a file open while it builds, and waits for as long as there is one, whoever made it.
    """
    found = set()
    for place in (Path(f"/proc/{pid}") for pid in pids):
        with contextlib.suppress(OSError):
            variables = (place / "environ").read_text(errors="replace").split("\0")
            roots = [Path(each.removeprefix(BUILDS)).resolve() for each in variables if each.startswith(BUILDS)]
            for descriptor in (place / "fd").iterdir():
                with contextlib.suppress(OSError):
                    path = descriptor.readlink()
                    is_build = "torch_extensions" in path.parts or any(path.is_relative_to(root) for root in roots)
                    if path.name == "lock" and is_build:
                        found.add((path, descriptor.stat().st_ino))
    return found


def _members(belongs: Callable[[Process], bool]) -> set[int]:
    """Return the processes that run and belong to a trial, with all their descendants."""
    running = [process for process in _all_processes().values() if process.runs]
    found: set[int] = set()
    children = {process.pid for process in running if belongs(process)}
    while not children <= found:
        found |= children
        children = {process.pid for process in running if process.parent in found}
    return found - {os.getpid()}


def _signal(pids: set[int], signum: int) -> None:
    for pid in sorted(pids):  # a shell before its children, or it would report their end in the log
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have gone by itself
            os.kill(pid, signum)


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
    """Return what END_MARKED is started with."""
    return [f"{variable}={value}", str(round(grace_s * 10))]
