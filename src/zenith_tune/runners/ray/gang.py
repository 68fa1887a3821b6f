"""One trial's nodes of a Ray cluster: a placement group, and a worker on each of its nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.runners.launch.gang import (
    NODE_RANK,
    deepspeed_on_each_node,
    gang_command,
    gang_environment,
    portable,
)
from zenith_tune.runners.launch.own_command import GPUS, PORT, own_command
from zenith_tune.runners.launch.process_tree import END_MARKED, MARK, end_arguments
from zenith_tune.runners.launch.trackers import without_trackers
from zenith_tune.runners.ray import worker as ray_worker
from zenith_tune.runners.ray.cluster import RayCluster
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import ACCELERATE, DEEPSPEED
from zenith_tune.shell.variables import with_variables
from zenith_tune.study.resources import Resources

_READ_S = 1.0
_PLACED_S = 1  # Ray counts in whole seconds
_LOOK_S = 0.2
_END_S = 20.0
_SILENT_S = 60.0
"""How long a worker that Ray cannot reach may come back."""
LISTED_S = 3.0
"""How long after its workers a node is listed as dead."""
_NODE_MARK = "ZENITHTUNE_NODE"
"""A variable that distinguishes one worker's processes from its peers', where two of Ray's nodes share a machine."""


class GangLostError(Exception):
    """A failure that is not the command's; `node` is the one that failed, if one did."""

    def __init__(self, reason: str, node: str = "") -> None:
        super().__init__(reason)
        self.node = node


class NodeLostError(GangLostError):
    """The loss of a node."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"node {name} was lost: {why}", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The place of one worker."""

    name: str
    node_id: str
    address: str
    port: int
    gpus: str


class RayGang:
    """A trial's nodes; the calling thread looks at `keep_on()` while it waits."""

    def __init__(self, cluster: RayCluster, resources: Resources, keep_on: Callable[[], bool]) -> None:
        from ray.util.placement_group import placement_group

        self._cluster = cluster
        self._ray = cluster.ray
        self._keep_on = keep_on
        self._workers: list[Any] = []
        self._reads: dict[Any, int] = {}
        self._positions = [0] * resources.nodes
        self._silent_since: dict[int, float] = {}
        self.slots: list[Slot] = []
        self._end_marks: list[str] = []
        """The mark of each worker's processes, once they may be there."""
        self._bundle = cluster.bundle(resources)
        self._resources = resources = cluster.without_needless_avoidance(resources, self._bundle)
        avoided = [node.node_id for node in cluster.nodes() if node.name in resources.avoid]
        selector = {"bundle_label_selector": [{"ray.io/node-id": f"!in({','.join(avoided)})"}] * resources.nodes}
        self._group = placement_group(
            [self._bundle] * resources.nodes,
            strategy="STRICT_SPREAD" if resources.nodes > 1 else "PACK",
            **(selector if avoided else {}),
        )

    def is_placed(self) -> bool:
        """Tell whether the nodes are the trial's; waits a moment for it."""
        return bool(self._group.wait(_PLACED_S))

    def check_room(self) -> None:
        """Raise UsageError where the cluster has lost so many nodes that the trial can never be placed."""
        self._cluster.check_room(self._resources, self._bundle)

    def start_workers(self) -> bool:
        """Start a worker on each node; False where the wait for them was given up."""
        self._workers = [self._worker(rank) for rank in range(self._resources.nodes)]
        asked = {worker.address.remote(): rank for rank, worker in enumerate(self._workers)}
        answers = dict(self._answers(asked))
        if len(answers) < len(self._workers):
            return False
        names = {node.node_id: node.name for node in self._cluster.nodes()}
        for _, reported in sorted(answers.items()):
            name = names.get(reported["node_id"], reported["address"])
            self.slots.append(Slot(name=name, **{**reported, "port": int(reported["port"])}))
        return True

    def _worker(self, rank: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=rank)
        options = {"num_cpus": self._bundle["CPU"], "num_gpus": self._bundle.get("GPU", 0)}
        actor = self._ray.remote(ray_worker.RayWorker)
        return actor.options(scheduling_strategy=place, max_concurrency=4, **options).remote()

    def start_command(self, command: str, folder: Path, grace_s: float) -> bool:
        """Start the command on each node; False where the wait for it was given up."""
        first, num_nodes = self.slots[0], len(self.slots)
        gpus = f'"${GPUS}"' if all(slot.gpus for slot in self.slots) else ""
        command = with_variables(command, {PORT: str(first.port), **({GPUS: gpus} if gpus else {})})
        launcher = ParsedCommand.of(command).launcher
        if launcher is not None and launcher.kind == DEEPSPEED:
            asks = launcher.option("--num-gpus", "--num-accelerators") is not None
            given = int(self._bundle.get("GPU", 0)) or self._resources.gpus_per_node
            command = deepspeed_on_each_node(command, num_nodes, None if asks else given)
        else:
            command = gang_command(command, num_nodes, first.address, first.port)
        if launcher is not None and launcher.kind == ACCELERATE:
            command = own_command(command, gpus=gpus, port=str(first.port))
        asked = {}
        self._end_marks = [f"{rank} {folder}" for rank in range(num_nodes)]
        for rank, worker in enumerate(self._workers):
            meeting = gang_environment(num_nodes, rank, first.address, first.port)
            own = {name: value for name, value in portable(without_trackers(os.environ)).items() if name != GPUS}
            variables = {**own, **meeting, MARK: str(folder), _NODE_MARK: self._end_marks[rank]}
            text = command.replace(NODE_RANK, str(rank))
            ending = end_arguments(self._end_marks[rank], grace_s, _NODE_MARK)
            asked[worker.start.remote(text, variables, str(Path.cwd()), END_MARKED, ending)] = rank
        return len(list(self._answers(asked))) == num_nodes

    def read(self) -> list[tuple[int, bytes, int | None]]:
        """Return what nodes printed since, and the exit code of those that are over; waits a moment for it."""
        if not self._reads:
            for rank in range(len(self._workers)):
                self._ask_for_more(rank)
        ready, _ = self._ray.wait(list(self._reads), num_returns=1, timeout=_LOOK_S)
        reported = []
        for ref in ready:
            rank = self._reads.pop(ref)
            text, code = self._printed(ref, rank)
            self._positions[rank] += len(text)
            reported.append((rank, text, code))
            if code is None:
                self._ask_for_more(rank)
        return reported

    def _ask_for_more(self, rank: int) -> None:
        self._reads[self._workers[rank].read.remote(self._positions[rank], _READ_S)] = rank

    def _printed(self, ref: Any, rank: int) -> tuple[bytes, int | None]:
        """Return a worker's answer; one that is out of reach has a while to come back, unless its node is dead."""
        from ray.exceptions import ActorUnavailableError

        try:
            text, code = self._ray.get(ref)
        except ActorUnavailableError:
            since = self._silent_since.setdefault(rank, time.monotonic())
            self.check_nodes()
            if time.monotonic() - since > _SILENT_S:
                self.check_reach()
            time.sleep(_LOOK_S)
            return b"", None
        except self._ray.exceptions.RayError as error:
            raise self._lost(rank, error) from None
        self._silent_since.pop(rank, None)
        return text, code

    def end(self, grace_s: float) -> None:
        """End everything on all nodes, and give them back."""
        from ray.util.placement_group import remove_placement_group

        workers = dict(enumerate(self._workers)) if self._end_marks else {}
        gone = self._end_by(workers, grace_s)
        # A worker that died leaves the end of its trial to its guard: one in its place waits for that.
        alive = {node.node_id for node in self._cluster.nodes() if node.is_alive} if gone else set()
        others = {rank: self._worker(rank) for rank in gone if self.slots[rank].node_id in alive}
        self._end_by(others, grace_s)
        for worker in (*self._workers, *others.values()):
            self._ray.kill(worker, no_restart=True)
        remove_placement_group(self._group)

    def _end_by(self, workers: Mapping[int, Any], grace_s: float) -> list[int]:
        """Have workers end what runs on their nodes; returns the ranks of those that died."""
        asked = {}
        for rank, worker in workers.items():
            ending = end_arguments(self._end_marks[rank], grace_s, _NODE_MARK)
            asked[worker.end.remote(END_MARKED, ending)] = rank
        if not asked:
            return []
        answered, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=grace_s + _END_S)
        return [asked[ref] for ref in answered if self._has_died(ref)]

    def _has_died(self, ref: Any) -> bool:
        try:
            self._ray.get(ref)
        except self._ray.exceptions.RayError:
            return True
        return False

    def _answers(self, asked: dict[Any, int]) -> Iterator[tuple[int, Any]]:
        """Yield the workers' answers as they come, until all came or the wait is given up."""
        while asked and self._keep_on():
            ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=_LOOK_S)
            for ref in ready:
                rank = asked.pop(ref)
                try:
                    answer = self._ray.get(ref)
                except self._ray.exceptions.RayError as error:
                    raise self._lost(rank, error) from None
                yield rank, answer

    def check_reach(self) -> None:
        """Raise NodeLostError if a worker is out of reach, for whoever cannot wait for it to come back."""
        for rank in self._silent_since:
            raise NodeLostError(self.slots[rank].name, "Ray cannot reach it")

    def check_nodes(self, wait_s: float = 0.0) -> None:
        """Raise NodeLostError if one of the nodes died, or does so within `wait_s`."""
        deadline = time.monotonic() + wait_s
        while True:
            alive = {node.node_id for node in self._cluster.nodes() if node.is_alive}
            if dead := [slot.name for slot in self.slots if slot.node_id not in alive]:
                raise NodeLostError(dead[0], "Ray says that it died")
            if time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_S)

    def _lost(self, rank: int, error: Exception) -> GangLostError:
        """Return what is gone: a node, which may be another than Ray names first, or else a worker alone."""
        try:
            self.check_nodes(LISTED_S)
        except NodeLostError as lost:
            return lost
        where = f" on {self.slots[rank].name}" if self.slots else ""
        # Of what Ray says, without what is always the same.
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        details = [line.partition("Worker exit detail: ")[2] for line in lines if "Worker exit detail: " in line]
        why = (details or lines)[0].partition(" Some common causes")[0].rstrip(".")[:200]
        return GangLostError(f"Ray's worker{where} died: {why}")
