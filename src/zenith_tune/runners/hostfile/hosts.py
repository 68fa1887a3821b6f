"""The hosts of a hostfile: how commands are started on them, and which of them are free."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from zenith_tune.runners.launch.process_tree import END_MARKED, MARK, end_arguments
from zenith_tune.study.resources import Resources

LOST_CODE = 255
"""What ssh exits with when it cannot connect, or when the connection broke."""
_CONNECT_S = 15
# No master connection is shared: a trial that is ended would take those of others with it.
_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": _CONNECT_S,
    "ServerAliveInterval": 15,
    "ServerAliveCountMax": 4,
    "ControlPath": "none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostShell:
    """A host on which commands are started."""

    name: str
    ssh: str = "ssh"
    """Program for connections, with options of the user's own if need be."""

    @property
    def is_local(self) -> bool:
        """Whether the host is this machine, which needs no ssh."""
        own = socket.gethostname()
        return self.name in {"localhost", "127.0.0.1", "::1", own, own.partition(".")[0]}

    def argv(self, command: Sequence[str], ssh_log: str | None = None) -> list[str]:
        """Return what starts the command there; `ssh_log` is a file for the messages of ssh itself."""
        if self.is_local:
            return list(command)
        options = [part for name, value in _OPTIONS.items() for part in ("-o", f"{name}={value}")]
        log = ["-E", ssh_log] if ssh_log else []
        return [*shlex.split(self.ssh), "-T", *options, *log, "--", self.name, "exec " + shlex.join(command)]

    def end_marked(self, folder: str, grace_s: float) -> None:
        """End whatever runs there for the trial in `folder`; a host that does not answer is left."""
        argv = self.argv(["/bin/sh", "-s", *end_arguments(folder, grace_s)])
        environment = {name: value for name, value in os.environ.items() if name != MARK}
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(
                argv,
                input=END_MARKED.encode(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                timeout=grace_s + 2 * _CONNECT_S,
                check=False,
                start_new_session=True,
            )

    def why_unreachable(self) -> str | None:
        """Return what ssh says where the host does not answer, else None."""
        if self.is_local:
            return None
        try:
            asked = subprocess.run(
                self.argv(["true"]), stdin=subprocess.DEVNULL, capture_output=True, timeout=2 * _CONNECT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"no answer within {2 * _CONNECT_S} s"
        except OSError as error:
            return f"{shlex.split(self.ssh)[0]}: {error.strerror}"
        return last_line(asked.stderr) if asked.returncode == LOST_CODE else None


def end_marked_everywhere(shells: Sequence[HostShell], folder: str, grace_s: float) -> None:
    """End a trial's processes on all of its hosts at once."""
    with ThreadPoolExecutor(max_workers=max(len(shells), 1)) as ending:
        list(ending.map(lambda shell: shell.end_marked(folder, grace_s), shells))


def unreachable(shells: Sequence[HostShell]) -> dict[str, str]:
    """Return the hosts that do not answer, each with what ssh says of it."""
    with ThreadPoolExecutor(max_workers=32) as asking:
        reported = list(asking.map(HostShell.why_unreachable, shells))
    return {shell.name: why for shell, why in zip(shells, reported, strict=True) if why is not None}


def last_line(text: bytes) -> str:
    """Return the last line that says something."""
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else "the connection ended"


class HostPool:
    """Whole hosts, given out in the order of the hostfile; one that failed only where there are too few others."""

    def __init__(self, slots: Mapping[str, int]) -> None:
        self.slots = dict(slots)
        self._free = set(slots)
        self._failed: set[str] = set()
        self._changed = threading.Condition()

    def fitting(self, resources: Resources) -> list[str]:
        """Return the hosts that a trial with such needs may ever be given."""
        gpus = resources.gpus_per_node or 1
        return [name for name, slots in self.slots.items() if slots >= gpus]

    def take(self, resources: Resources) -> list[str] | None:
        """Return hosts that are the caller's until they are given back; None where they are not free yet."""
        with self._changed:
            fitting = self.fitting(resources)
            sound = [name for name in fitting if name not in self._failed.union(resources.avoid)]
            usable = sound if len(sound) >= resources.nodes else fitting
            taken = [name for name in usable if name in self._free][: resources.nodes]
            if len(taken) < resources.nodes:
                return None
            self._free -= set(taken)
            return taken

    def give_back(self, hosts: Sequence[str], failed: Sequence[str] = ()) -> None:
        """Take hosts back, and remember which of them failed; one that did not is sound again."""
        with self._changed:
            self._free |= set(hosts)
            self._failed = (self._failed - set(hosts)) | set(failed)
            self._changed.notify_all()

    def distrust(self, hosts: Collection[str]) -> None:
        """Remember hosts that failed before anybody took them."""
        with self._changed:
            self._failed |= set(hosts)

    def wait(self, timeout_s: float) -> None:
        """Sleep until hosts were given back, at most so long."""
        with self._changed:
            self._changed.wait(timeout_s)
