"""Runs trials on the hosts of a hostfile: each waits for free hosts, then its gang runs as a process here."""

from __future__ import annotations

import os
import random
import re
import shlex
import socket
from dataclasses import replace
from pathlib import Path

from zenith_tune.describe.hostfile import read_hostfile
from zenith_tune.errors import UsageError
from zenith_tune.runners.base import End, Job, JobRequest, JobResult, RunnerRegistry, check_seconds
from zenith_tune.runners.hostfile.gang import LOST_FILE, GangOrder
from zenith_tune.runners.hostfile.hosts import LOST_CODE, HostPool, HostShell, end_marked_everywhere, unreachable
from zenith_tune.runners.launch.gang import deepspeed_command, gang_command, is_deepspeed
from zenith_tune.runners.launch.process_tree import MARK
from zenith_tune.runners.local.room import free_port
from zenith_tune.runners.local.runner import LocalJob, LocalRunner
from zenith_tune.study.files import TrialFolder, write_atomically, write_json
from zenith_tune.study.resources import Resources

_LOOK_S = 0.1
"""How often a job that waits for hosts looks whether the study was interrupted."""
_DEEPSPEED_ENV = ".deepspeed_env"


class HostfileJob(LocalJob):
    """A command that waits for its hosts or runs on them."""

    runner: HostfileRunner

    def __init__(self, runner: HostfileRunner, request: JobRequest) -> None:
        self._pool = runner.pool
        self._hosts: list[str] = []
        super().__init__(runner, request)

    def start(self) -> None:
        self._begin()
        if not self._hosts:
            self.request.on_state(f"pending (waits for {self.request.resources.describe()} of the hostfile)")

    def look(self) -> JobResult | None:
        self._begin()
        return super().look() if self._hosts else None

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
        end_marked_everywhere(self.runner.shells(self._hosts), str(self.files.path), grace_s)
        lost = self.files.read_json(self.files.path / LOST_FILE) if result.exit_code == LOST_CODE else {}
        self._pool.give_back(self._hosts, failed=[lost["host"]] if lost else [])
        for path in self.files.path.glob("ssh-*.txt"):
            if not path.stat().st_size:
                path.unlink()
        if not lost:
            return replace(result, place=",".join(self._hosts))
        reason = f"host {lost['host']} was lost: {lost['why']}"
        return replace(result, end=End.LOST, exit_code=None, place=lost["host"], reason=reason)

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
        command, is_local = self.request.command, HostShell(name=hosts[0]).is_local
        address, port = hosts[0], random.randrange(20_000, 32_000)  # below those that Linux gives to whoever asks
        if is_local:
            address = "127.0.0.1" if len(hosts) == 1 else socket.gethostname()
            port = free_port("")
        if not is_deepspeed(command):
            command = gang_command(command, len(hosts), address, port)
            return GangOrder(command=command, hosts=hosts, address=address, port=port, ssh=self.runner.ssh)
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
            ssh=self.runner.ssh,
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


def _users_deepspeed_env() -> str:
    """Return the user's own such file, which the launcher would not read in addition to the trial's."""
    name = os.environ.get("DS_ENV_FILE", _DEEPSPEED_ENV)
    paths = [folder / name for folder in (Path.home(), Path.cwd())]
    text = "".join(path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file())
    return text if not text or text.endswith("\n") else text + "\n"


_NAME = re.compile(r"[\w.:%@][\w.:%@-]*", re.ASCII)


@RunnerRegistry.register("hostfile")
class HostfileRunner(LocalRunner):
    """Trials on free hosts: torchrun and plain commands by ssh on each, deepspeed once with a hostfile."""

    shares_machine = False

    def __init__(self, *, hostfile: str, ssh: str = "ssh", grace_s: float = 5.0) -> None:
        check_seconds("hostfile", "grace_s", grace_s)
        try:
            has_program = bool(shlex.split(ssh))
        except ValueError:
            has_program = False
        if not has_program:
            problem = f"hostfile: ssh must be a program with its options, but got {ssh[:80]!r}"
            raise UsageError(problem, hint="give e.g. ssh=ssh")
        self.ssh = ssh
        self.pool = HostPool(_hosts(hostfile))
        self._path = hostfile
        self._nodes = 1
        self._silent: dict[str, str] = {}
        """Hosts that did not answer when the study began, each with ssh's message."""
        super().__init__(grace_s=grace_s)

    def prepare(self, resources: Resources, parallel: int | None = 1) -> None:
        fitting = self.pool.fitting(resources)
        self._nodes = resources.nodes
        if len(fitting) < resources.nodes:
            num_hosts = len(self.pool.slots)
            few = f"{len(fitting)} of {num_hosts} hosts" if len(fitting) < num_hosts else f"{len(fitting)}"
            slots = f" with {resources.gpus_per_node} slots or more" if resources.gpus_per_node else ""
            hint = "add hosts, or take fewer nodes or GPUs for a trial"
            raise UsageError(f"a trial needs {resources.describe()}, but {self._path} has {few}{slots}", hint=hint)
        room = len(fitting) // resources.nodes
        if parallel is not None and parallel > room:
            problem = f"{parallel} trials of {resources.describe()} need {parallel * resources.nodes} hosts"
            raise UsageError(
                f"{problem}, but {self._path} has {len(fitting)}", hint=f"give --parallel auto, or at most {room}"
            )
        num_answering = self._ask(fitting, resources)
        self.num_slots = parallel or num_answering // resources.nodes

    def _ask(self, hosts: list[str], resources: Resources) -> int:
        """Return how many hosts answer; too few for a trial would have every trial lost, one after the other."""
        self._silent = unreachable(self.shells(hosts))
        num_answering = len(hosts) - len(self._silent)
        if num_answering < resources.nodes:
            name, why = next(iter(self._silent.items()))
            more, do = (f" and {len(self._silent) - 1} more", "do") if len(self._silent) > 1 else ("", "does")
            silent = f"host {name}{more} of {self._path} {do} not answer ({why})"
            hint = f"see that `{self.ssh} {name} true` works without a password"
            raise UsageError(f"a trial needs {resources.describe()}, but {silent}", hint=hint)
        self.pool.distrust(self._silent)
        return num_answering

    def warnings(self) -> list[str]:
        hint = "used only where others are too few"
        return [f"host {name} does not answer ({why}): {hint}" for name, why in self._silent.items()]

    def notes(self) -> list[str]:
        if len(self.pool.slots) < 2:
            return []
        each = "a host of its own" if self._nodes == 1 else f"{self._nodes} hosts of its own"
        side = f"{self.num_slots} trials side by side, each" if self.num_slots > 1 else "each trial"
        where = f"{side} on {each}, from hostfile {self._path}; all hosts must see this folder under its name here"
        return [where]

    def start(self, request: JobRequest) -> Job:
        return HostfileJob(self, request)

    def shells(self, hosts: list[str]) -> list[HostShell]:
        return [HostShell(name=name, ssh=self.ssh) for name in hosts]

    def recover(self, folder: Path) -> JobResult | None:
        result = super().recover(folder)
        files = TrialFolder(folder)
        hosts = files.read_json(files.job).get("hosts", [])
        end_marked_everywhere(self.shells(hosts), str(folder), self.grace_s)
        return None if result is not None and result.exit_code == LOST_CODE else result


def _hosts(path: str) -> dict[str, int]:
    try:
        hosts = read_hostfile(path)
    except OSError as error:
        raise UsageError(f"the hostfile cannot be read: {error.strerror}: {path}") from None
    if not hosts:
        problem = f"a hostfile must name a host, but {path} is empty"
        raise UsageError(problem, hint="write a line `name slots=8` for each")
    if odd := [name for name in hosts if not _NAME.fullmatch(name)]:
        raise UsageError(f"a host's name must be one that ssh takes, but {path} has {odd[0][:60]!r}: correct it")
    return hosts
