"""Runs trials on a Ray cluster, each in a placement group of its own."""

from __future__ import annotations

import json
import math
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.runners.base import End, Job, JobRequest, JobResult, Runner, RunnerRegistry, check_seconds
from zenith_tune.runners.launch.gang import check_gang_command
from zenith_tune.runners.launch.own_command import own_variables
from zenith_tune.runners.launch.process_tree import ProcessTree
from zenith_tune.runners.ray.cluster import RayCluster
from zenith_tune.runners.ray.job import RayJob
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources


@RunnerRegistry.register("ray")
class RayRunner(Runner):
    """Gang-schedule each trial over nodes of a Ray cluster, and bring its output back."""

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
        try:
            reported = json.loads(files.read(files.job))
            code, duration_s = int(reported["exit_code"]), float(reported["duration_s"])
            return JobResult(end=End.EXITED, exit_code=code, duration_s=duration_s, place=str(reported["place"]))
        except (ValueError, KeyError, TypeError):
            return None

    def close(self) -> None:
        self.cluster.close()
