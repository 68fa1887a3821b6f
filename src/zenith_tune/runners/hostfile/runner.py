"""Runs trials on the hosts of a hostfile, each on hosts of its own."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

from zenith_tune.describe.hostfile import read_hostfile
from zenith_tune.errors import UsageError
from zenith_tune.registry import RunnerRegistry
from zenith_tune.runners.base import End, Job, JobResult, OnState, Runner, check_seconds, nobody_listens
from zenith_tune.runners.hostfile.gang import (
    LOST_CODE,
    LOST_FILE,
    GangOrder,
    HostShell,
    end_marked_everywhere,
    unreachable,
)
from zenith_tune.runners.launch.own_command import deepspeed_command, gang_command, is_deepspeed
from zenith_tune.runners.launch.process_tree import MARK
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.study.files import TrialFolder, write_atomically, write_json
from zenith_tune.study.resources import Resources


class HostPool:
    """Give out whole hosts, in the order of the hostfile; one that failed only where there are too few others.

    >>> pool = HostPool({"n1": 8, "n2": 8, "n3": 4})
    >>> pool.take(Resources(nodes=2, gpus_per_node=8)), pool.take(Resources(gpus_per_node=8)), pool.take(Resources())
    (['n1', 'n2'], None, ['n3'])
    """

    def __init__(self, slots: Mapping[str, int]) -> None:
        self.slots = dict(slots)
        self._free = set(slots)
        self._failed: set[str] = set()
        self._changed = threading.Condition()

    def fitting(self, resources: Resources) -> list[str]:
        """Return the hosts that a trial with such needs may ever be given."""
        gpus = resources.gpus_per_node or 1
        return [name for name, slots in self.slots.items() if slots >= gpus and name not in resources.avoid]

    def take(self, resources: Resources) -> list[str] | None:
        """Return hosts that are the caller's until they are given back; None where they are not free yet."""
        with self._changed:
            fitting = self.fitting(resources)
            sound = [name for name in fitting if name not in self._failed]
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


_LOOK_S = 0.1
"""How often a job that waits for hosts looks whether the study was interrupted."""
_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to whoever asks for any."""
_DEEPSPEED_ENV = ".deepspeed_env"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostfileRequest:
    """Hold what a trial asks of the runner."""

    command: str
    folder: Path
    resources: Resources
    timeout_s: float | None
    on_state: OnState


class HostfileJob(Job):
    """Stand for a command that waits for its hosts or runs on them."""

    def __init__(self, runner: HostfileRunner, request: HostfileRequest) -> None:
        self._runner = runner
        self._request = request
        self.log_path = TrialFolder(request.folder).log
        self._hosts: list[str] = []
        self._inner: Job | None = None
        self._result: JobResult | None = None
        self._start()
        if self._inner is None and self._result is None:
            request.on_state(f"pending (waits for {request.resources.describe()} of the hostfile)")

    def poll(self) -> JobResult | None:
        if self._result is None and self._start() is not None:
            self._close(self._require_inner().poll())
        return self._result

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult | None: ...

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._result is None and self._start() is None and self._result is None:
            if self._runner.is_interrupted:
                self.cancel()
            elif until is not None and time.monotonic() >= until:
                return None
            else:
                self._runner.pool.wait(_LOOK_S if until is None else min(_LOOK_S, max(0.0, until - time.monotonic())))
        if self._result is None:
            inner = self._require_inner()
            self._close(inner.wait() if until is None else inner.wait(max(0.0, until - time.monotonic())))
        return self._result

    def cancel(self) -> None:
        if self._result is None and self._inner is None:
            self._result = JobResult(end=End.CANCELLED, exit_code=None, duration_s=0.0)
        elif self._result is None:
            self._require_inner().cancel()
            self._close(self._require_inner().poll())

    def stop(self) -> None:
        if self.poll() is not None:
            return
        if self._inner is None:
            self._result = JobResult(end=End.STOPPED, exit_code=None, duration_s=0.0)
            return
        self._inner.stop()
        self._close(self._inner.poll())

    def _require_inner(self) -> Job:
        assert self._inner is not None
        return self._inner

    def _start(self) -> Job | None:
        """Start on free hosts, unless it did; None while there are none."""
        if self._inner is not None or self._result is not None:
            return self._inner
        wanted, pool = self._request.resources, self._runner.pool
        if len(pool.fitting(wanted)) < wanted.nodes:
            reason = f"no other hosts are left for {wanted.describe()} without {', '.join(wanted.avoid)}"
            self._result = JobResult(end=End.LOST, exit_code=None, duration_s=0.0, reason=reason)
            return None
        hosts = pool.take(wanted)
        if hosts is None:
            return None
        try:
            self._inner = self._started_on(hosts)
        except BaseException:
            pool.give_back(hosts)
            raise
        self._hosts = hosts
        with self._runner.starting_or_ending:
            self._runner.num_running += 1
        self._request.on_state(f"running on {','.join(hosts)}")
        return self._inner

    def _started_on(self, hosts: list[str]) -> Job:
        files = TrialFolder(self._request.folder)
        order = self._order(hosts)
        (files.path / LOST_FILE).unlink(missing_ok=True)
        # Before anything starts: whoever resumes must know where to look for it.
        write_json(files.job, {"runner": "hostfile", "hosts": hosts})
        return self._runner.local.submit(order.as_command(), files.path, Resources(), timeout_s=self._request.timeout_s)

    def _order(self, hosts: list[str]) -> GangOrder:
        command, shells = self._request.command, self._runner.shells(hosts)
        address = _own_address(hosts) if shells[0].is_local else hosts[0]
        port = _free_port() if shells[0].is_local else random.choice(_PORTS)
        if not is_deepspeed(command):
            command = gang_command(command, len(hosts), address, port)
            return GangOrder(command=command, hosts=hosts, address=address, port=port, ssh=self._runner.ssh)
        options = {"--hostfile": str(self._write_deepspeed_files(hosts)), "--master_port": str(port)}
        flags = []
        if len(hosts) == 1 and shells[0].is_local:
            options["--master_addr"], flags = address, ["--no_ssh_check"]
        elif len(hosts) == 1:
            flags = ["--force_multi"]  # else it takes the only host of a hostfile for this machine
        return GangOrder(
            command=deepspeed_command(command, options, flags=flags),
            hosts=["localhost"],
            address=address,
            port=port,
            ssh=self._runner.ssh,
            variables={"DS_ENV_FILE": str(self._request.folder / _DEEPSPEED_ENV)},
            reaches=hosts,
        )

    def _write_deepspeed_files(self, hosts: list[str]) -> Path:
        """Write the trial's own hostfile, and the variables that DeepSpeed's launcher takes along to other hosts."""
        folder, gpus = self._request.folder, self._request.resources.gpus_per_node
        lines = [f"{name} slots={gpus or self._runner.pool.slots[name]}\n" for name in hosts]
        write_atomically(folder / "hostfile", "".join(lines))
        mark = f"{MARK}={shlex.quote(str(folder))}\n"
        write_atomically(folder / _DEEPSPEED_ENV, _users_deepspeed_env() + mark, is_private=True)
        return folder / "hostfile"

    def _close(self, inner: JobResult | None) -> None:
        if inner is None:
            return
        runner, folder = self._runner, self._request.folder
        grace_s = 0.0 if runner.local.in_a_hurry() else runner.grace_s
        end_marked_everywhere(runner.shells(self._hosts), str(folder), grace_s)
        lost = _lost(folder) if inner.exit_code == LOST_CODE else None
        runner.pool.give_back(self._hosts, failed=[lost["host"]] if lost else [])
        with runner.starting_or_ending:
            runner.num_running -= 1
        for path in folder.glob("ssh-*.txt"):
            if not path.stat().st_size:
                path.unlink()
        if lost:
            reason = f"host {lost['host']} was lost: {lost['why']}"
            self._result = replace(inner, end=End.LOST, exit_code=None, place=lost["host"], reason=reason)
        else:
            self._result = replace(inner, place=",".join(self._hosts))


def hosts_left_in(folder: Path) -> list[str]:
    """Return the hosts on which a trial was started."""
    files = TrialFolder(folder)
    try:
        hosts = json.loads(files.read(files.job)).get("hosts", [])
    except (ValueError, AttributeError):
        return []
    return hosts if isinstance(hosts, list) and all(isinstance(name, str) for name in hosts) else []


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
    text = ""
    for folder in (Path.home(), Path.cwd()):
        path = folder / name
        text += path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    return text if not text or text.endswith("\n") else text + "\n"


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
            problem = (
                f"a trial needs {resources.describe()}, but host {name}{more} of {self._path} {do} not answer ({why})"
            )
            raise UsageError(problem, hint=f"see that `{self.ssh} {name} true` works without a password")
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
        raise UsageError(
            f"hostfile: ssh must be a program with its options, but got {ssh[:80]!r}", hint="give e.g. ssh=ssh"
        )
    return ssh


def _hosts(path: str) -> dict[str, int]:
    try:
        hosts = read_hostfile(path)
    except OSError as error:
        raise UsageError(f"the hostfile cannot be read: {error.strerror}: {path}") from None
    if not hosts:
        raise UsageError(
            f"a hostfile must name a host, but {path} is empty", hint="write a line `name slots=8` for each"
        )
    if odd := [name for name in hosts if not _NAME.fullmatch(name)]:
        raise UsageError(f"a host's name must be one that ssh takes, but {path} has {odd[0][:60]!r}: correct it")
    return hosts
