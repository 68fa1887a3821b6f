"""One trial on hosts of a hostfile: it waits for free hosts, then its gang runs as a process of this machine."""

from __future__ import annotations

import json
import os
import random
import shlex
import socket
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from zenith_tune.runners.base import End, JobRequest, JobResult
from zenith_tune.runners.hostfile.gang import LOST_FILE, GangOrder
from zenith_tune.runners.hostfile.hosts import LOST_CODE, HostPool, HostShell, end_marked_everywhere
from zenith_tune.runners.launch.gang import deepspeed_command, gang_command, is_deepspeed
from zenith_tune.runners.launch.process_tree import MARK
from zenith_tune.runners.local.runner import LocalJob, LocalRunner
from zenith_tune.study.files import write_atomically, write_json

_LOOK_S = 0.1
"""How often a job that waits for hosts looks whether the study was interrupted."""
_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to whoever asks for any."""
_DEEPSPEED_ENV = ".deepspeed_env"


class HostfileJob(LocalJob):
    """Stand for a command that waits for its hosts or runs on them."""

    def __init__(self, runner: LocalRunner, request: JobRequest, pool: HostPool, ssh: str) -> None:
        self._pool = pool
        self._ssh = ssh
        self._hosts: list[str] = []
        super().__init__(runner, request)

    def start(self) -> None:
        self._begin()
        if not self._hosts and self._has_hosts_left():
            self.request.on_state(f"pending (waits for {self.request.resources.describe()} of the hostfile)")

    def look(self) -> JobResult | None:
        self._begin()
        if self._hosts:
            return super().look()
        if self._has_hosts_left():
            return None
        wanted = self.request.resources
        reason = f"no other hosts are left for {wanted.describe()} without {', '.join(wanted.avoid)}"
        return JobResult(end=End.LOST, exit_code=None, duration_s=0.0, reason=reason)

    def pause(self, limit_s: float) -> None:
        if self._hosts:
            super().pause(limit_s)
        else:
            self._pool.wait(max(min(limit_s, _LOOK_S), 0.0))

    def kill(self, end: End) -> JobResult:
        return super().kill(end) if self._hosts else JobResult(end=end, exit_code=None, duration_s=0.0)

    def collect(self, end: End) -> JobResult:
        result = super().collect(end)
        grace_s = 0.0 if self.runner.in_a_hurry() else self.runner.grace_s
        end_marked_everywhere(self._shells(self._hosts), str(self.files.path), grace_s)
        lost = _lost(self.files.path) if result.exit_code == LOST_CODE else None
        self._pool.give_back(self._hosts, failed=[lost["host"]] if lost else [])
        for path in self.files.path.glob("ssh-*.txt"):
            if not path.stat().st_size:
                path.unlink()
        if lost is None:
            return replace(result, place=",".join(self._hosts))
        reason = f"host {lost['host']} was lost: {lost['why']}"
        return replace(result, end=End.LOST, exit_code=None, place=lost["host"], reason=reason)

    def _has_hosts_left(self) -> bool:
        return len(self._pool.fitting(self.request.resources)) >= self.request.resources.nodes

    def _shells(self, hosts: Sequence[str]) -> list[HostShell]:
        return [HostShell(name=name, ssh=self._ssh) for name in hosts]

    def _begin(self) -> None:
        """Start on free hosts, if there are enough and it has not begun."""
        if self._hosts or (hosts := self._pool.take(self.request.resources)) is None:
            return
        try:
            order = self._order(hosts)
            (self.files.path / LOST_FILE).unlink(missing_ok=True)
            # Before anything starts: whoever resumes must know where to look for it.
            write_json(self.files.job, {"runner": "hostfile", "hosts": hosts})
            self.spawn(order.as_command())
        except BaseException:
            self._pool.give_back(hosts)
            raise
        self._hosts = hosts
        self.request.on_state(f"running on {','.join(hosts)}")

    def _order(self, hosts: list[str]) -> GangOrder:
        command, is_local = self.request.command, self._shells(hosts)[0].is_local
        address = _own_address(hosts) if is_local else hosts[0]
        port = _free_port() if is_local else random.choice(_PORTS)
        if not is_deepspeed(command):
            command = gang_command(command, len(hosts), address, port)
            return GangOrder(command=command, hosts=hosts, address=address, port=port, ssh=self._ssh)
        options = {"--hostfile": str(self._write_deepspeed_files(hosts)), "--master_port": str(port)}
        flags = []
        if len(hosts) == 1 and is_local:
            options["--master_addr"], flags = address, ["--no_ssh_check"]
        elif len(hosts) == 1:
            flags = ["--force_multi"]  # else it takes the only host of a hostfile for this machine
        return GangOrder(
            command=deepspeed_command(command, options, flags=flags),
            hosts=["localhost"],
            address=address,
            port=port,
            ssh=self._ssh,
            variables={"DS_ENV_FILE": str(self.files.path / _DEEPSPEED_ENV)},
            reaches=hosts,
        )

    def _write_deepspeed_files(self, hosts: list[str]) -> Path:
        """Write the trial's own hostfile, and the variables that DeepSpeed's launcher takes along to other hosts."""
        folder, gpus = self.files.path, self.request.resources.gpus_per_node
        lines = [f"{name} slots={gpus or self._pool.slots[name]}\n" for name in hosts]
        write_atomically(folder / "hostfile", "".join(lines))
        mark = f"{MARK}={shlex.quote(str(folder))}\n"
        write_atomically(folder / _DEEPSPEED_ENV, _users_deepspeed_env() + mark, is_private=True)
        return folder / "hostfile"


def _lost(folder: Path) -> dict[str, str] | None:
    try:
        reported = json.loads((folder / LOST_FILE).read_text(encoding="utf-8"))
        return {"host": str(reported["host"]), "why": str(reported["why"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _own_address(hosts: Sequence[str]) -> str:
    return "127.0.0.1" if len(hosts) == 1 else socket.gethostname()


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _users_deepspeed_env() -> str:
    """Return what the user has the launcher take along; it would not be read beside the trial's own."""
    name = os.environ.get("DS_ENV_FILE", _DEEPSPEED_ENV)
    paths = [folder / name for folder in (Path.home(), Path.cwd())]
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file())
    return text if not text or text.endswith("\n") else text + "\n"
