"""Runs trials on a Ray cluster, each in a placement group of its own."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.registry import RunnerRegistry
from zenith_tune.runners.base import End, Job, JobResult, OnState, Runner, nobody_listens
from zenith_tune.runners.gang_command import check_gang_command
from zenith_tune.runners.launch.own_command import check_script, own_variables, replaced_settings
from zenith_tune.runners.launch.process_tree import ProcessTree
from zenith_tune.runners.ray.cluster import RayCluster
from zenith_tune.runners.ray_job import RayJob, RayRequest
from zenith_tune.runners.seconds import check_seconds
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources

_STARTING_AT_ONCE = 2
"""Trials whose workers start at the same time: many at once on few cores take so long that Ray gives them up."""


@RunnerRegistry.register("ray")
class RayRunner(Runner):
    """Gang-schedule each trial over nodes of a Ray cluster, and bring its output back."""

    def __init__(self, *, address: str = "auto", grace_s: float = 5.0, cpus_per_node: float = 1.0) -> None:
        if not 0 <= cpus_per_node < math.inf:
            law = f"ray: cpus_per_node must be 0 or more, but got {cpus_per_node:g}"
            raise UsageError(f"{law}: give e.g. cpus_per_node=1, or leave it out")
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
            law = f"{parallel} trials of {resources.describe()} must fit side by side"
            raise UsageError(f"{law}, but the Ray cluster has room for {room}: give --parallel auto, or at most {room}")
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
            told = json.loads(files.read(files.job))
            code, duration_s = int(told["exit_code"]), float(told["duration_s"])
            return JobResult(end=End.EXITED, exit_code=code, duration_s=duration_s, place=str(told["place"]))
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
