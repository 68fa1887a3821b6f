"""Who tunes a study: a process that can be told from a later one with the same pid."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

_STATE, _START_TICKS = 0, 19  # fields of /proc/PID/stat, counted from behind the name


@dataclass(frozen=True, slots=True, kw_only=True)
class TunerIdentity:
    """Tell one tuner from another, also from a later process with the same pid."""

    host: str
    machine: str
    """Where its pid means something: this boot of the kernel, the container in it, and a user who may see it."""
    pid: int
    start_ticks: int

    @classmethod
    def own(cls) -> TunerIdentity:
        """Return who this process is."""
        fields = _stat(os.getpid())
        ticks = int(fields[_START_TICKS]) if fields else 0
        return cls(host=socket.gethostname(), machine=_machine(), pid=os.getpid(), start_ticks=ticks)

    def is_gone(self) -> bool:
        """Tell whether the tuner has surely ended; of one on another machine that cannot be seen."""
        if not self.machine or self.machine != _machine():
            return False
        fields = _stat(self.pid)
        return not fields or int(fields[_START_TICKS]) != self.start_ticks or fields[_STATE] in "ZX"


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()} uid {os.getuid()}"
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    try:
        # The name, in brackets before them, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []
