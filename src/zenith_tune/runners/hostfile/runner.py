"""Runs trials on the hosts of a hostfile, each on hosts of its own."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from zenith_tune.describe.hostfile import read_hostfile
from zenith_tune.errors import UsageError
from zenith_tune.runners.base import Job, JobRequest, JobResult, RunnerRegistry, check_seconds
from zenith_tune.runners.hostfile.hosts import LOST_CODE, HostPool, HostShell, end_marked_everywhere, unreachable
from zenith_tune.runners.hostfile.job import HostfileJob
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources

_NAME = re.compile(r"[\w.:%@][\w.:%@-]*", re.ASCII)


@RunnerRegistry.register("hostfile")
class HostfileRunner(LocalRunner):
    """Start each trial on free hosts: torchrun and plain commands by ssh on each, deepspeed once with a hostfile."""

    shares_machine = False

    def __init__(self, *, hostfile: str, ssh: str = "ssh", grace_s: float = 5.0) -> None:
        check_seconds("hostfile", "grace_s", grace_s)
        self.ssh = _checked_ssh(ssh)
        self.pool = HostPool(_hosts(hostfile))
        self._path = hostfile
        self._nodes = 1
        self._silent: dict[str, str] = {}
        """Hosts that did not answer when the study began, each with what ssh says."""
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

    def notes(self) -> list[str]:
        hint = "used only where others are too few"
        silent = [f"host {name} does not answer ({why}): {hint}" for name, why in self._silent.items()]
        if len(self.pool.slots) < 2:
            return silent
        each = "a host of its own" if self._nodes == 1 else f"{self._nodes} hosts of its own"
        side = f"{self.num_slots} trials side by side, each" if self.num_slots > 1 else "each trial"
        where = f"{side} on {each}, from hostfile {self._path}; all hosts must see this folder under its name here"
        return [where, *silent]

    def start(self, request: JobRequest) -> Job:
        return HostfileJob(self, request, self.pool, self.ssh)

    def shells(self, hosts: list[str]) -> list[HostShell]:
        """Return the shells of these hosts."""
        return [HostShell(name=name, ssh=self.ssh) for name in hosts]

    def recover(self, folder: Path) -> JobResult | None:
        result = super().recover(folder)
        end_marked_everywhere(self.shells(_hosts_left_in(folder)), str(folder), self.grace_s)
        return None if result is not None and result.exit_code == LOST_CODE else result


def _hosts_left_in(folder: Path) -> list[str]:
    """Return the hosts on which a trial was started."""
    files = TrialFolder(folder)
    try:
        hosts = json.loads(files.read(files.job)).get("hosts", [])
    except (ValueError, AttributeError):
        return []
    return hosts if isinstance(hosts, list) and all(isinstance(name, str) for name in hosts) else []


def _checked_ssh(ssh: str) -> str:
    try:
        argv = shlex.split(ssh)
    except ValueError:
        argv = []
    if not argv:
        problem = f"hostfile: ssh must be a program with its options, but got {ssh[:80]!r}"
        raise UsageError(problem, hint="give e.g. ssh=ssh")
    return ssh


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
