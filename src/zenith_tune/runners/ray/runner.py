"""Runs trials on a Ray cluster, each in a placement group of its own."""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import overload

from zenith_tune.errors import UsageError
from zenith_tune.registry import RunnerRegistry
from zenith_tune.runners.base import End, Job, JobResult, OnState, Runner, check_seconds, nobody_listens
from zenith_tune.runners.launch.own_command import (
    GangLog,
    check_gang_command,
    check_script,
    own_variables,
    replaced_settings,
)
from zenith_tune.runners.launch.process_tree import ProcessTree
from zenith_tune.runners.ray.cluster import RayCluster
from zenith_tune.runners.ray.gang import LISTED_S, NodeLostError, RayGang
from zenith_tune.study.files import TrialFolder, write_json
from zenith_tune.study.resources import Resources

_LOOK_S = 0.1
_SIGNALLED = [128 + signum for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL)]
_AFTER_FAILURE_S = 10.0
"""How long the other nodes have to end by themselves, and to tell why, when the command failed on one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayRequest:
    """Hold what a trial asks of the runner."""

    command: str
    folder: Path
    resources: Resources
    timeout_s: float | None
    on_state: OnState


class RayJob(Job):
    """Stand for a command that waits for its nodes or runs on them."""

    def __init__(self, runner: RayRunner, request: RayRequest) -> None:
        self._runner = runner
        self._request = request
        self._files = TrialFolder(request.folder)
        self.log_path = self._files.log
        self._asked: End | None = None
        self._started: float | None = None
        self._failed_at: float | None = None
        self._codes: dict[int, int] = {}
        self._result: JobResult | None = None
        self._error: Exception | None = None
        """What is no fault of the cluster; whoever waits hears of it."""
        self._done = threading.Event()
        with runner.starting_or_ending:
            runner.num_running += 1
        threading.Thread(target=self._follow, name="ray-trial", daemon=True).start()

    def poll(self) -> JobResult | None:
        if self._done.is_set() and self._error is not None:
            raise self._error
        return self._result if self._done.is_set() else None

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult | None: ...

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._done.is_set():
            if self._runner.is_interrupted:
                self.cancel()
            elif until is not None and time.monotonic() >= until:
                return None
            else:
                self._done.wait(_LOOK_S if until is None else min(_LOOK_S, max(0.0, until - time.monotonic())))
        return self.poll()

    def cancel(self) -> None:
        self._ask(End.CANCELLED)

    def stop(self) -> None:
        self._ask(End.STOPPED)

    def _ask(self, end: End) -> None:
        self._asked = self._asked or end
        self._done.wait()

    def _follow(self) -> None:
        lost, gang = None, None
        try:
            gang = RayGang(self._runner.cluster, self._request.resources, self._may_go_on)
            self._run(gang)
        except NodeLostError as error:
            lost = error
        except Exception as error:
            if isinstance(error, OSError | UsageError) and not isinstance(error, ConnectionError):
                self._error = error  # of this machine, such as a full disk
            lost = NodeLostError("", f"{type(error).__name__}: {error}".splitlines()[0][:300])
        duration_s = 0.0 if self._started is None else time.monotonic() - self._started
        if gang is not None:
            self._end(gang)
        place = ",".join(slot.name for slot in gang.slots) if gang else ""
        self._close(self._judged(lost, place, duration_s))

    def _run(self, gang: RayGang) -> None:
        request = self._request
        if not self._is_placed(gang):
            return
        with self._runner.starting_workers:
            if not self._may_go_on() or not gang.start_workers():
                return
        names = [slot.name for slot in gang.slots]
        write_json(self._files.job, {"runner": "ray", "place": ",".join(names)})
        if not gang.start_command(request.command, request.folder, self._runner.grace_s):
            return
        self._started = time.monotonic()
        request.on_state(f"running on {','.join(names)}")
        with self._files.log.open("ab", buffering=0) as file:
            log = GangLog(names, file.write)
            while len(self._codes) < len(names) and self._may_go_on():
                for rank, text, code in gang.read():
                    log.feed(rank, text)
                    self._note(rank, code)
                if self._failed_at is not None:
                    gang.check_nodes()
            for rank in range(len(names)):
                log.close(rank)
        if self._asked is None and self._failed_at is not None:
            gang.check_reach()
        # A dying node ends its processes before it is known to be dead.
        if self._asked is None and any(code in _SIGNALLED for code in self._codes.values()):
            gang.check_nodes(LISTED_S)

    def _is_placed(self, gang: RayGang) -> bool:
        if not gang.is_placed():
            self._request.on_state(f"pending (Ray has no room for {self._request.resources.describe()} yet)")
            while not gang.is_placed():
                if not self._may_go_on():
                    return False
                time.sleep(_LOOK_S)
        return True

    def _note(self, rank: int, code: int | None) -> None:
        if code is not None:
            self._codes[rank] = code
            if code and self._failed_at is None:
                self._failed_at = time.monotonic()

    def _may_go_on(self) -> bool:
        """Tell whether nobody asked for the end, and neither the time nor the patience with a failed gang is over."""
        now, limit_s = time.monotonic(), self._request.timeout_s
        if self._started is not None and limit_s is not None and now - self._started >= limit_s:
            self._asked = self._asked or End.TIMED_OUT
        gives_up = self._failed_at is not None and now - self._failed_at >= _AFTER_FAILURE_S
        return self._asked is None and not gives_up

    def _end(self, gang: RayGang) -> None:
        try:
            gang.end(0.0 if self._runner.in_a_hurry() else self._runner.grace_s)
        except Exception as error:  # the cluster may be gone with all that ran on it
            self._request.on_state(f"Ray did not end it: {type(error).__name__}")

    def _judged(self, lost: NodeLostError | None, place: str, duration_s: float) -> JobResult:
        is_over = lost is None and bool(self._codes) and len(self._codes) == self._request.resources.nodes
        if self._asked is not None and not is_over:
            return JobResult(end=self._asked, exit_code=None, duration_s=duration_s, place=place)
        if lost is not None:
            return JobResult(end=End.LOST, exit_code=None, duration_s=duration_s, place=lost.name, reason=str(lost))
        code = next((code for code in self._codes.values() if code), 0)
        return JobResult(end=End.EXITED, exit_code=code, duration_s=duration_s, place=place)

    def _close(self, result: JobResult) -> None:
        try:
            if result.end is End.EXITED:
                reported = {"exit_code": result.exit_code, "duration_s": result.duration_s, "place": result.place}
                write_json(self._files.job, {"runner": "ray", **reported})
        finally:
            with self._runner.starting_or_ending:
                self._runner.num_running -= 1
            self._result = result
            self._done.set()


_STARTING_AT_ONCE = 2
"""Trials whose workers start at the same time: many at once on few cores take so long that Ray gives them up."""


@RunnerRegistry.register("ray")
class RayRunner(Runner):
    """Gang-schedule each trial over nodes of a Ray cluster, and bring its output back."""

    def __init__(self, *, address: str = "auto", grace_s: float = 5.0, cpus_per_node: float = 1.0) -> None:
        if not 0 <= cpus_per_node < math.inf:
            problem = f"ray: cpus_per_node must be 0 or more, but got {cpus_per_node:g}"
            raise UsageError(problem, hint="give e.g. cpus_per_node=1, or leave it out")
        check_seconds("ray", "grace_s", grace_s)
        self.grace_s = grace_s
        """Seconds between SIGTERM and SIGKILL when a trial is ended."""
        self.cluster = RayCluster(address, cpus_per_node)
        self.starting_or_ending = threading.Lock()
        self.starting_workers = threading.BoundedSemaphore(_STARTING_AT_ONCE)
        self._interrupts = 0
        self._note = ""
        self._own_variables: dict[str, str] = {}
        self._shares_nodes = False
        """Whether two trials may be on one node, once the study is prepared."""

    def prepare(self, resources: Resources, parallel: int | None = 1) -> None:
        room = self.cluster.num_gangs(resources)
        if parallel is not None and parallel > room:
            problem = f"{parallel} trials of {resources.describe()} must fit side by side"
            raise UsageError(
                f"{problem}, but the Ray cluster has room for {room}", hint=f"give --parallel auto, or at most {room}"
            )
        self.num_slots = parallel or room
        alive = sum(node.is_alive for node in self.cluster.nodes())
        trials = f"{self.num_slots} trials side by side" if self.num_slots > 1 else "one trial at a time"
        self._own_variables = own_variables(has_gpus=resources.gpus_per_node is not None)
        self._shares_nodes = self.num_slots * resources.nodes > alive
        self._note = f"Ray cluster of {alive} node{'s' * (alive != 1)}: {trials}, each on {resources.describe()}"

    def notes(self) -> list[str]:
        return [self._note] if self._note else []

    def command_notes(self, command: str) -> list[str]:
        if self._shares_nodes:
            check_script(command, self._own_variables)
        return replaced_settings(command, self._own_variables)

    def submit(
        self,
        command: str,
        folder: Path,
        resources: Resources,
        *,
        timeout_s: float | None = None,
        on_state: OnState = nobody_listens,
    ) -> Job:
        check_gang_command(command, resources.nodes)
        self.command_notes(command)
        return RayJob(
            self,
            RayRequest(command=command, folder=folder, resources=resources, timeout_s=timeout_s, on_state=on_state),
        )

    def recover(self, folder: Path) -> JobResult | None:
        # Ray ends a killed tuner's workers, and their guards the rest; here is what may be looked after from here.
        ProcessTree(folder, None).end(self.grace_s)
        files = TrialFolder(folder)
        try:
            reported = json.loads(files.read(files.job))
            code, duration_s = int(reported["exit_code"]), float(reported["duration_s"])
            return JobResult(end=End.EXITED, exit_code=code, duration_s=duration_s, place=str(reported["place"]))
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def is_interrupted(self) -> bool:
        """Tell whether the runner was told to stop."""
        return self._interrupts > 0

    def in_a_hurry(self) -> bool:
        """Tell whether the user asked twice: then nothing gets time to end by itself."""
        return self._interrupts > 1

    def interrupt(self) -> None:
        self._interrupts += 1

    def reset(self) -> None:
        self._interrupts = 0

    def close(self) -> None:
        self.cluster.close()
