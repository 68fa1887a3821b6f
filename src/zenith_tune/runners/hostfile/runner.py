"""Runs trials on the hosts of a hostfile, each on hosts of its own."""

from __future__ import annotations

import re
import shlex
import threading
from pathlib import Path

from zenith_tune.describe.hostfile import read_hostfile
from zenith_tune.errors import UsageError
from zenith_tune.registry import RunnerRegistry
from zenith_tune.runners.base import Job, JobResult, OnState, Runner, nobody_listens
from zenith_tune.runners.host_pool import HostPool
from zenith_tune.runners.host_shell import LOST_CODE, HostShell, end_marked_everywhere, unreachable
from zenith_tune.runners.hostfile_job import HostfileJob, HostfileRequest, hosts_left_in
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.runners.seconds import check_seconds
from zenith_tune.study.resources import Resources

_NAME = re.compile(r"[\w.:%@][\w.:%@-]*", re.ASCII)


@RunnerRegistry.register("hostfile")
class HostfileRunner(Runner):
    """Start each trial on free hosts: torchrun and plain commands by ssh on each, deepspeed once with a hostfile."""

    def __init__(self, *, hostfile: str, ssh: str = "ssh", grace_s: float = 5.0) -> None:
        check_seconds("hostfile", "grace_s", grace_s)
        self.ssh = _checked_ssh(ssh)
        self.grace_s = grace_s
        """Seconds between SIGTERM and SIGKILL when a trial is ended."""
        self.pool = HostPool(_hosts(hostfile))
        self.local = LocalRunner(grace_s=grace_s)
        self.is_interrupted = False
        self.starting_or_ending = threading.Lock()
        self._path = hostfile
        self._nodes = 1
        self._silent: dict[str, str] = {}
        """Hosts that did not answer when the study began, each with what ssh says."""

    def prepare(self, resources: Resources, parallel: int | None = 1) -> None:
        fitting = self.pool.fitting(resources)
        self._nodes = resources.nodes
        if len(fitting) < resources.nodes:
            num_hosts = len(self.pool.slots)
            few = f"{len(fitting)} of {num_hosts} hosts" if len(fitting) < num_hosts else f"{len(fitting)}"
            slots = f" with {resources.gpus_per_node} slots or more" if resources.gpus_per_node else ""
            cure = "add hosts, or take fewer nodes or GPUs for a trial"
            raise UsageError(f"a trial needs {resources.describe()}, but {self._path} has {few}{slots}: {cure}")
        room = len(fitting) // resources.nodes
        if parallel is not None and parallel > room:
            law = f"{parallel} trials of {resources.describe()} need {parallel * resources.nodes} hosts"
            raise UsageError(f"{law}, but {self._path} has {len(fitting)}: give --parallel auto, or at most {room}")
        num_answering = self._ask(fitting, resources)
        self.num_slots = parallel or num_answering // resources.nodes

    def _ask(self, hosts: list[str], resources: Resources) -> int:
        """Return how many hosts answer; too few for a trial would have every trial lost, one after the other."""
        self._silent = unreachable(self.shells(hosts))
        num_answering = len(hosts) - len(self._silent)
        if num_answering < resources.nodes:
            name, why = next(iter(self._silent.items()))
            more, do = (f" and {len(self._silent) - 1} more", "do") if len(self._silent) > 1 else ("", "does")
            law = f"a trial needs {resources.describe()}, but host {name}{more} of {self._path} {do} not answer ({why})"
            raise UsageError(f"{law}: see that `{self.ssh} {name} true` works without a password")
        self.pool.distrust(self._silent)
        return num_answering

    def notes(self) -> list[str]:
        cure = "used only where others are too few"
        silent = [f"host {name} does not answer ({why}): {cure}" for name, why in self._silent.items()]
        if len(self.pool.slots) < 2:
            return silent
        each = "a host of its own" if self._nodes == 1 else f"{self._nodes} hosts of its own"
        side = f"{self.num_slots} trials side by side, each" if self.num_slots > 1 else "each trial"
        where = f"{side} on {each}, from hostfile {self._path}; all hosts must see this folder under its name here"
        return [where, *silent]

    def submit(
        self,
        command: str,
        folder: Path,
        resources: Resources,
        *,
        timeout_s: float | None = None,
        on_state: OnState = nobody_listens,
    ) -> Job:
        return HostfileJob(
            self,
            HostfileRequest(
                command=command, folder=folder, resources=resources, timeout_s=timeout_s, on_state=on_state
            ),
        )

    def shells(self, hosts: list[str]) -> list[HostShell]:
        """Return the shells of these hosts."""
        return [HostShell(name=name, ssh=self.ssh) for name in hosts]

    def recover(self, folder: Path) -> JobResult | None:
        result = self.local.recover(folder)
        end_marked_everywhere(self.shells(hosts_left_in(folder)), str(folder), self.grace_s)
        return None if result is not None and result.exit_code == LOST_CODE else result

    def interrupt(self) -> None:
        self.is_interrupted = True
        self.local.interrupt()

    def reset(self) -> None:
        self.is_interrupted = False
        self.local.reset()

    def close(self) -> None:
        self.local.close()


def _checked_ssh(ssh: str) -> str:
    try:
        words = shlex.split(ssh)
    except ValueError:
        words = []
    if not words:
        raise UsageError(f"hostfile: ssh must be a program with its options, but got {ssh[:80]!r}: give e.g. ssh=ssh")
    return ssh


def _hosts(path: str) -> dict[str, int]:
    try:
        hosts = read_hostfile(path)
    except OSError as error:
        raise UsageError(f"the hostfile cannot be read: {error.strerror}: {path}") from None
    if not hosts:
        raise UsageError(f"a hostfile must name a host, but {path} is empty: write a line `name slots=8` for each")
    if odd := [name for name in hosts if not _NAME.fullmatch(name)]:
        raise UsageError(f"a host's name must be one that ssh takes, but {path} has {odd[0][:60]!r}: correct it")
    return hosts
