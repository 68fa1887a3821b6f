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
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from zenith_tune.runners.hostfile.hosts import LOST_CODE, HostShell, last_line
from zenith_tune.runners.launch.gang import NODE_RANK, GangLog, gang_environment, portable
from zenith_tune.runners.launch.process_tree import MARK
from zenith_tune.runners.launch.trackers import without_trackers
from zenith_tune.shell import ParsedCommand

LOST_FILE = "lost.json"
"""In the trial's folder: which host failed, and how."""
_AFTER_FAILURE_S = 10.0
"""How long the other hosts have to end by themselves, and to print why, when one of them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GangOrder:
    """A command and its hosts, as the gang's process reads them."""

    command: str
    hosts: Sequence[str]
    address: str
    port: int
    ssh: str = "ssh"
    variables: Mapping[str, str] = field(default_factory=dict)
    reaches: Sequence[str] = ()
    """Hosts that the command goes to by itself, which must answer before it starts."""

    def as_command(self) -> str:
        return shlex.join([sys.executable, "-m", __name__, json.dumps(asdict(self))])


class HostGang:
    """One order on its hosts."""

    def __init__(self, order: GangOrder, folder: Path) -> None:
        self._order = order
        self._folder = folder
        self._shells = [HostShell(name=name, ssh=order.ssh) for name in order.hosts]
        self._reaches = [HostShell(name=name, ssh=order.ssh) for name in order.reaches]
        self._log = GangLog(order.hosts, _print)
        self._ended: queue.Queue[tuple[int, int]] = queue.Queue()
        self._nodes: list[subprocess.Popen[bytes]] = []

    def run(self) -> int:
        """Return the exit code of the first host that failed, or 0."""
        if self._reports_unreachable():
            return LOST_CODE
        for rank, shell in enumerate(self._shells):
            self._nodes.append(self._start(rank, shell))
        for rank in range(len(self._nodes)):
            threading.Thread(target=self._pump, args=(rank,), daemon=True).start()
        code = self._wait()
        return LOST_CODE if code and self._reports_unreachable() else code

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
                log = self._ssh_log(rank)
                self._write_lost(self._shells[rank].name, last_line(log.read_bytes() if log.exists() else b""))
                break
        for node in self._nodes:
            node.terminate()
        return failed

    def _start(self, rank: int, shell: HostShell) -> subprocess.Popen[bytes]:
        # Read from its input, because what stands in a command line is shown to everybody on that machine.
        read_and_run = ["/usr/bin/env", f"{MARK}={self._folder}", "/bin/sh", "-c", 'eval "$(cat)"']
        argv = shell.argv(read_and_run, str(self._ssh_log(rank)))
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it may be gone already, as its end shows
            pipe.write(self._script(rank, shell).encode())
        return process

    def _script(self, rank: int, shell: HostShell) -> str:
        order = self._order
        command = order.command.replace(NODE_RANK, str(rank))
        line = ParsedCommand.of(command)
        own = {} if line.needs_shell else line.assignments()
        meeting = gang_environment(len(order.hosts), rank, order.address, order.port)
        # An assignment of the command's own wins over what it would find.
        around = portable(without_trackers(os.environ))
        variables = {**around, **meeting, **order.variables, MARK: str(self._folder), **own}
        exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        argv = ["bash", "-o", "pipefail", "-c", command] if line.needs_shell else line.argv()
        folder = shlex.quote(str(Path.cwd()))
        missing = shlex.quote(f"zenithtune: {shell.name} has no folder {Path.cwd()}")
        # A command that exits with 255 itself must not look like a host that ssh lost.
        end = f"code=$?; [ $code = {LOST_CODE} ] && code=254; exit $code"
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

    def _reports_unreachable(self) -> bool:
        for shell in self._reaches:
            if (why := shell.why_unreachable()) is not None:
                self._write_lost(shell.name, why)
                return True
        return False

    def _write_lost(self, host: str, why: str) -> None:
        (self._folder / LOST_FILE).write_text(json.dumps({"host": host, "why": why}), encoding="utf-8")


def _print(text: bytes) -> None:
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def main() -> None:
    """Run the order that the only argument holds, for the trial that this process belongs to."""
    order = GangOrder(**json.loads(sys.argv[1]))
    sys.exit(HostGang(order, Path(os.environ[MARK])).run())


if __name__ == "__main__":
    main()
