"""Runs trials on a Ray cluster, each in a placement group of its own: a thread places it and brings its output back."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from pathlib import Path

from zenith_tune.errors import UsageError, ZenithTuneError
from zenith_tune.runners.base import End, Job, JobRequest, JobResult, Runner, RunnerRegistry, check_seconds
from zenith_tune.runners.launch.gang import GangLog, check_gang_command
from zenith_tune.runners.launch.own_command import own_variables
from zenith_tune.runners.launch.process_tree import ProcessTree
from zenith_tune.runners.ray.cluster import RayCluster
from zenith_tune.runners.ray.gang import LISTED_S, GangLostError, RayGang
from zenith_tune.study import faults
from zenith_tune.study.files import TrialFolder, write_json
from zenith_tune.study.resources import Resources

_LOOK_S = 0.1
_SIGNALLED = [128 + signum for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL)]
_AFTER_FAILURE_S = 10.0
"""How long the other nodes have to end by themselves, and to print why, when the command failed on one."""
_STARTING_WORKERS = threading.BoundedSemaphore(2)
"""Limits the trials whose workers start at once: many on few cores take so long that Ray gives them up."""


class RayJob(Job):
    """A command that waits for its nodes or runs on them."""

    def __init__(self, runner: Runner, request: JobRequest, cluster: RayCluster) -> None:
        self._cluster = cluster
        self._done = threading.Event()
        super().__init__(runner, request)

    def start(self) -> None:
        self._asked: End | None = None
        self._failed_at: float | None = None
        self._codes: dict[int, int] = {}
        self._outcome: JobResult | None = None
        self._error: Exception | None = None
        """An error that is not the cluster's, such as a full disk here; raised to whoever waits."""
        self._done.clear()
        threading.Thread(target=self._follow, name="ray-trial", daemon=True).start()

    def look(self) -> JobResult | None:
        if not self._done.is_set():
            self._cluster.check_head()
            return None
        if self._error is None:
            return self._outcome
        error = self._error
        if faults.is_system_fault(error):  # it may pass: whoever waits on finds the command started again
            self.began = None
            self.files.log.unlink(missing_ok=True)
            self.start()
        raise error

    def pause(self, limit_s: float) -> None:
        self._done.wait(max(min(limit_s, _LOOK_S), 0.0))

    def kill(self, end: End) -> JobResult:
        self._asked = end
        while not self._done.wait(_LOOK_S):
            if self._cluster.is_lost:
                return JobResult(end=end, exit_code=None, duration_s=self.ran_s())
        assert self._outcome is not None
        return self._outcome

    def _follow(self) -> None:
        lost, gang = None, None
        try:
            gang = RayGang(self._cluster, self.request.resources, self._may_continue)
            self._run(gang)
        except GangLostError as error:
            lost = error
        except Exception as error:
            if isinstance(error, OSError | ZenithTuneError) and not isinstance(error, ConnectionError):
                self._error = error
            lost = GangLostError(f"Ray failed: {type(error).__name__}: {error}".splitlines()[0][:300])
        ran_s = self.ran_s()
        if gang is not None:
            try:
                gang.end(0.0 if self.runner.in_a_hurry() else self.runner.grace_s)
            except Exception as error:  # the cluster may be gone with all that ran on it
                self.request.on_state(f"Ray did not end it: {type(error).__name__}")
        place = ",".join(slot.name for slot in gang.slots) if gang else ""
        self._outcome = self._judged(lost, place, ran_s)
        if self._outcome.end is End.EXITED:
            noted = {"exit_code": self._outcome.exit_code, "duration_s": ran_s, "place": place}
            with contextlib.suppress(OSError):  # a tuner that resumes without it runs the trial again
                write_json(self.files.job, {"runner": "ray", **noted})
        self._done.set()

    def _run(self, gang: RayGang) -> None:
        if not self._is_placed(gang):
            return
        with _STARTING_WORKERS:
            if not self._may_continue() or not gang.start_workers():
                return
        names = [slot.name for slot in gang.slots]
        write_json(self.files.job, {"runner": "ray", "place": ",".join(names)})
        if not gang.start_command(self.request.command, self.request.folder, self.runner.grace_s):
            return
        self.began = time.monotonic()
        self.request.on_state(f"running on {','.join(names)}")
        self._bring_back_output(gang, names)
        if self._asked is None and self._failed_at is not None:
            gang.check_reach()
        # A dying node ends its processes before it is known to be dead.
        if self._asked is None and any(code in _SIGNALLED for code in self._codes.values()):
            gang.check_nodes(LISTED_S)

    def _bring_back_output(self, gang: RayGang, names: list[str]) -> None:
        with self.files.log.open("ab", buffering=0) as file:
            log = GangLog(names, file.write)
            while len(self._codes) < len(names) and self._may_continue():
                for rank, text, code in gang.read():
                    log.feed(rank, text)
                    if code is not None:
                        self._codes[rank] = code
                    if code and self._failed_at is None:
                        self._failed_at = time.monotonic()
                if self._failed_at is not None:
                    gang.check_nodes()
            for rank in range(len(names)):
                log.close(rank)

    def _is_placed(self, gang: RayGang) -> bool:
        if not gang.is_placed():
            self.request.on_state(f"pending (Ray has no room for {self.request.resources.describe()} yet)")
            last_room = time.monotonic()
            while not gang.is_placed():
                if not self._may_continue():
                    return False
                last_room = self._last_room(gang, last_room)
                time.sleep(_LOOK_S)
        return True

    def _last_room(self, gang: RayGang, before: float) -> float:
        """Return when the cluster last had nodes enough; raises SystemFaultError where that is too long ago."""
        try:
            gang.check_room()
        except UsageError as error:
            if time.monotonic() - before < faults.DEFAULT_PATIENCE_S:
                return before
            waited = f"{error.problem}, after {faults.DEFAULT_PATIENCE_S:.0f} s of waiting"
            raise faults.stopping_error(waited, error, self.files.path) from None
        return time.monotonic()

    def _may_continue(self) -> bool:
        """Tell whether nobody asked for the end, and a gang that failed on one node still has time on the others."""
        gives_up = self._failed_at is not None and time.monotonic() - self._failed_at >= _AFTER_FAILURE_S
        return self._asked is None and not gives_up

    def _judged(self, lost: GangLostError | None, place: str, ran_s: float) -> JobResult:
        is_over = lost is None and bool(self._codes) and len(self._codes) == self.request.resources.nodes
        if self._asked is not None and not is_over:
            return JobResult(end=self._asked, exit_code=None, duration_s=ran_s, place=place)
        if lost is not None:
            return JobResult(end=End.LOST, exit_code=None, duration_s=ran_s, place=lost.node, reason=str(lost))
        code = next((code for code in self._codes.values() if code), 0)
        return JobResult(end=End.EXITED, exit_code=code, duration_s=ran_s, place=place)


@RunnerRegistry.register("ray")
class RayRunner(Runner):
    """Trials gang-scheduled over the nodes of a Ray cluster, which bring their output back."""

    def __init__(self, *, address: str = "auto", grace_s: float = 5.0, cpus_per_node: float = 1.0) -> None:
        if not 0 <= cpus_per_node < math.inf:
            problem = f"ray: cpus_per_node must be 0 or more, but got {cpus_per_node:g}"
            raise UsageError(problem, hint="give e.g. cpus_per_node=1, or leave it out")
        check_seconds("ray", "grace_s", grace_s)
        self.grace_s = grace_s
        self.cluster = RayCluster(address, cpus_per_node)

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
        self.own_variables = own_variables(has_gpus=resources.gpus_per_node is not None)
        self.shares_nodes = self.num_slots * resources.nodes > alive
        self.note = f"Ray cluster of {alive} node{'s' * (alive != 1)}: {trials}, each on {resources.describe()}"

    def start(self, request: JobRequest) -> Job:
        check_gang_command(request.command, request.resources.nodes)
        return RayJob(self, request, self.cluster)

    def recover(self, folder: Path) -> JobResult | None:
        # Ray ends a killed tuner's workers, and their guards the rest; what is on this machine is ended from here.
        ProcessTree(folder, None).end(self.grace_s)
        files = TrialFolder(folder)
        noted = files.read_json(files.job)
        if "exit_code" not in noted:
            return None
        code, duration_s = int(noted["exit_code"]), float(noted["duration_s"])
        return JobResult(end=End.EXITED, exit_code=code, duration_s=duration_s, place=str(noted["place"]))

    def close(self) -> None:
        self.cluster.close()
