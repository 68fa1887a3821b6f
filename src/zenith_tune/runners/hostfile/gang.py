"""One process of this machine that stands for a command on several hosts: it starts the command on each by ssh, joins
what they print, and exits as they do.

It runs as a trial of the local runner, so that the trial's record, its timeout and its end are those of any other.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

from zenith_tune.runners.launch.marked_processes import END_MARKED, end_arguments
from zenith_tune.runners.launch.own_command import NODE_RANK, GangLog, gang_environment, portable
from zenith_tune.runners.launch.process_tree import MARK
from zenith_tune.shell import ParsedCommand

LOST_CODE = 255
"""What ssh exits with when it cannot connect, or when the connection broke."""
_CONNECT_S = 15
_ASKED_AT_ONCE = 32
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
    """Start commands on a host."""

    name: str
    ssh: str = "ssh"
    """The program, with options of the user's own if need be."""

    @property
    def is_local(self) -> bool:
        """Tell whether the host is this machine, which needs no ssh."""
        return self.name in _own_names()

    def argv(self, words: Sequence[str], ssh_log: str | None = None) -> list[str]:
        """Return what starts `words` there; `ssh_log` is a file for what ssh itself has to say."""
        if self.is_local:
            return list(words)
        options = [word for name, value in _OPTIONS.items() for word in ("-o", f"{name}={value}")]
        log = ["-E", ssh_log] if ssh_log else []
        return [*shlex.split(self.ssh), "-T", *options, *log, "--", self.name, "exec " + shlex.join(words)]

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
    threads = [threading.Thread(target=shell.end_marked, args=(folder, grace_s)) for shell in shells]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def unreachable(shells: Sequence[HostShell]) -> dict[str, str]:
    """Return the hosts that do not answer, each with what ssh says of it."""
    with ThreadPoolExecutor(max_workers=_ASKED_AT_ONCE) as asking:
        reported = list(asking.map(HostShell.why_unreachable, shells))
    return {shell.name: why for shell, why in zip(shells, reported, strict=True) if why is not None}


def last_line(text: bytes) -> str:
    """Return the last line that says something."""
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:200] if lines else "the connection ended"


@cache
def _own_names() -> frozenset[str]:
    own = socket.gethostname()
    return frozenset({"localhost", "127.0.0.1", "::1", own, own.partition(".")[0]})


LOST_FILE = "lost.json"
"""In the trial's folder: which host failed, and how."""
_AFTER_FAILURE_S = 10.0
"""How long the other hosts have to end by themselves, and to tell why, when one of them failed."""
_NOT_LOST = 254
"""Told for a command that exits with 255 itself, which ssh says of a lost host."""

# Read from its input, because what stands in a command line is shown to everybody on that machine.
_READ_AND_RUN = 'eval "$(cat)"'


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOrder:
    """Hold what is to run where, as the gang's process is told it."""

    command: str
    hosts: Sequence[str]
    address: str
    port: int
    ssh: str = "ssh"
    variables: Mapping[str, str] = field(default_factory=dict)
    reaches: Sequence[str] = ()
    """Hosts that the command goes to by itself, which must answer before it starts."""

    def as_command(self) -> str:
        """Return the command by which this machine runs it."""
        return shlex.join([sys.executable, "-m", __name__, json.dumps(asdict(self))])


class HostGang:
    """Run one order to its end."""

    def __init__(self, order: GangOrder, folder: Path) -> None:
        self._order = order
        self._folder = folder
        self._shells = [HostShell(name=name, ssh=order.ssh) for name in order.hosts]
        self._reaches = [HostShell(name=name, ssh=order.ssh) for name in order.reaches]
        self._log = GangLog(order.hosts, lambda text: _write_all(1, text))
        self._ended: queue.Queue[tuple[int, int]] = queue.Queue()
        self._nodes: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Return the exit code of the first host that failed, or 0."""
        if self._tell_unreachable():
            return LOST_CODE
        for rank, shell in enumerate(self._shells):
            self._nodes.append(self._start(rank, shell))
        for rank in range(len(self._nodes)):
            threading.Thread(target=self._pump, args=(rank,), daemon=True).start()
        code = self._wait()
        return LOST_CODE if code and self._tell_unreachable() else code

    def _wait(self) -> int:
        """Wait for all hosts; once one has failed, for a while."""
        failed, left = 0, len(self._nodes)
        while left:
            try:
                rank, code = self._ended.get(timeout=_AFTER_FAILURE_S if failed else None)
            except queue.Empty:
                break
            left -= 1
            failed = failed or code
            if code == LOST_CODE:
                self._tell_lost(rank)
                break
        for node in self._nodes:
            node.terminate()
        return failed

    def _start(self, rank: int, shell: HostShell) -> subprocess.Popen[bytes]:
        argv = shell.argv(
            ["/usr/bin/env", f"{MARK}={self._folder}", "/bin/sh", "-c", _READ_AND_RUN], str(self._ssh_log(rank))
        )
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it may be gone already, which its end tells
            pipe.write(self._script(rank, shell).encode())
        return process

    def _script(self, rank: int, shell: HostShell) -> str:
        order = self._order
        command = order.command.replace(NODE_RANK, str(rank))
        line = ParsedCommand.of(command)
        own = {} if line.needs_shell else line.assignments()
        meeting = gang_environment(len(order.hosts), rank, order.address, order.port)
        # An assignment of the command's own wins over what it would find.
        variables = {**portable(os.environ), **meeting, **order.variables, MARK: str(self._folder), **own}
        exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        argv = ["bash", "-o", "pipefail", "-c", command] if line.needs_shell else line.argv()
        folder = shlex.quote(str(Path.cwd()))
        missing = shlex.quote(f"zenithtune: {shell.name} has no folder {Path.cwd()}")
        end = f"code=$?; [ $code = {LOST_CODE} ] && code={_NOT_LOST}; exit $code"
        go = f"cd {folder} || {{ echo {missing}; exit 1; }}"
        # The shell's own remark on a program that was ended is no part of the log.
        run = f"exec 3>&2 2>/dev/null\n{shlex.join(argv)} </dev/null 2>&3 3>&-"
        return "\n".join([*exports, go, run, end, ""])

    def _pump(self, rank: int) -> None:
        node = self._nodes[rank]
        assert node.stdout is not None
        while text := os.read(node.stdout.fileno(), 1 << 16):
            self._log.feed(rank, text)
        self._log.close(rank)
        code = node.wait()
        is_lost = code == LOST_CODE and not self._shells[rank].is_local
        self._ended.put((rank, LOST_CODE if is_lost else code if code >= 0 else 128 - code))

    def _ssh_log(self, rank: int) -> Path:
        return self._folder / f"ssh-{rank}.txt"

    def _tell_lost(self, rank: int) -> None:
        try:
            said = self._ssh_log(rank).read_bytes()
        except OSError:
            said = b""
        self._write_lost(self._shells[rank].name, last_line(said))

    def _tell_unreachable(self) -> bool:
        for shell in self._reaches:
            if (why := shell.why_unreachable()) is not None:
                self._write_lost(shell.name, why)
                return True
        return False

    def _write_lost(self, host: str, why: str) -> None:
        (self._folder / LOST_FILE).write_text(json.dumps({"host": host, "why": why}), encoding="utf-8")


def _write_all(descriptor: int, text: bytes) -> None:
    while text:
        text = text[os.write(descriptor, text) :]


def main() -> None:
    """Run the order that the only argument holds, for the trial that this process belongs to."""
    order = GangOrder(**json.loads(sys.argv[1]))
    sys.exit(HostGang(order, Path(os.environ[MARK])).run())


if __name__ == "__main__":
    main()
