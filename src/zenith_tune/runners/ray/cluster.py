"""A Ray cluster as trials see it: its nodes, their names, and how many trials fit."""

from __future__ import annotations

import importlib
import logging
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zenith_tune.errors import SystemFaultError, UsageError
from zenith_tune.runners.launch.gang import most_gangs
from zenith_tune.runners.ray import worker as ray_worker
from zenith_tune.study.resources import Resources

_CONNECT_S = 10.0
_LOOK_S, _LOST_S = 2.0, 15.0
"""How often the head is looked for, and after how long without it a study stops: after 60 s Ray ends the process."""
_ADDRESS = re.compile(
    r"auto|local|(?:[\w.-]+|\[[0-9a-fA-F:.%]+\]):([0-9]{1,5})|ray://[^\s:/]\S*|(?!ray:)[\w+.-]+://\S+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNode:
    """A node; `name` is its address, with a part of its id where several share that."""

    node_id: str
    name: str
    is_alive: bool
    num_gpus: float
    num_cpus: float


class RayCluster:
    """The connection to a cluster; one that this process has already is used, and left as it is."""

    def __init__(self, address: str, cpus_per_node: float) -> None:
        check_address(address)
        self._address = address
        self._cpus = cpus_per_node
        self._ray: Any = None
        self._is_own = False
        self._connecting = threading.Lock()
        self._head: tuple[str, int] | None = None
        """Where the head listens; None where it cannot be reached from here, as behind ray://."""
        self._looked_s = self._answered_s = time.monotonic()

    @property
    def ray(self) -> Any:
        with self._connecting:
            if self._ray is None:
                self._ray = self._connected()
            return self._ray

    def close(self) -> None:
        """End the connection, if it was made here; to a head that is gone Ray would wait for it."""
        if self._ray is not None and self._is_own and not self.is_lost:
            self._ray.shutdown()
        self._ray, self._is_own = None, False

    @property
    def is_lost(self) -> bool:
        """Whether the head has not answered for so long that the study stops."""
        return self._looked_s - self._answered_s > _LOST_S

    def check_head(self) -> None:
        """Stop the study, in one line, where the head is gone: Ray ends a process that waits for it without a word."""
        now = time.monotonic()
        if self._head is None or now - self._looked_s < _LOOK_S:
            return
        self._looked_s = now
        if _why_silent(self._head, _LOOK_S) is None:
            self._answered_s = now
        elif self.is_lost:
            problem = f"the head of the Ray cluster at {self._head[0]}:{self._head[1]} does not answer"
            raise SystemFaultError(f"{problem}: start it and continue with --resume; no finished trial is lost")

    def nodes(self) -> list[RayNode]:
        """Return every node that is or was part of the cluster."""
        return named_nodes(self.ray.nodes())

    def bundle(self, resources: Resources) -> dict[str, float]:
        """Return what a trial takes of each of its nodes: all GPUs of the largest where it does not say."""
        gpus = resources.gpus_per_node
        if gpus is None:
            gpus = int(max((node.num_gpus for node in self.nodes() if node.is_alive), default=0))
        return {"CPU": self._cpus, **({"GPU": float(gpus)} if gpus else {})}

    def num_gangs(self, resources: Resources) -> int:
        """Return how many trials fit side by side; raises UsageError where not even one ever does."""
        bundle = self.bundle(resources)
        self.check_room(resources, bundle)
        return most_gangs(list(self._rooms(bundle).values()), resources.nodes)

    def check_room(self, resources: Resources, bundle: Mapping[str, float]) -> None:
        """Raise UsageError where the nodes, as they are now, have no room for a trial even when nothing else runs."""
        rooms = self._rooms(bundle)
        num_rooms = len(rooms.keys() - set(resources.avoid))
        if num_rooms < resources.nodes:
            num_alive = sum(node.is_alive for node in self.nodes())
            without = f" without {', '.join(resources.avoid)}" if resources.avoid else ""
            wanted = f"{bundle.get('GPU', 0):g} GPUs and {bundle['CPU']:g} CPUs"
            has = f"{num_rooms} of its {num_alive} nodes have {wanted} each{without}"
            hint = "add nodes, or take fewer nodes or GPUs for a trial"
            raise UsageError(f"a trial needs {resources.describe()}, but of the Ray cluster {has}", hint=hint)

    def without_needless_avoidance(self, resources: Resources, bundle: Mapping[str, float]) -> Resources:
        """Return the needs of a trial, which keeps off no node where too few others are left: Ray skips dead ones."""
        try:
            self.check_room(resources, bundle)
        except UsageError:
            return replace(resources, avoid=())
        return resources

    def _rooms(self, bundle: Mapping[str, float]) -> dict[str, int]:
        """Return how many such bundles each node has room for, where it has any."""
        return {node.name: room for node in self.nodes() if node.is_alive and (room := _room(node, bundle))}

    def _connected(self) -> Any:
        try:
            import ray
            from ray import cloudpickle
        except ImportError:
            raise UsageError("runner ray needs Ray: pip install 'zenith-tune[ray]'") from None
        by_value: Any = cloudpickle.register_pickle_by_value
        by_value(ray_worker)  # the nodes need not have this package
        if ray.is_initialized():
            return ray
        self._check_answers()
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=self._address, log_to_driver=False, logging_level=logging.ERROR, namespace="zenithtune")
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise self._unreachable(str(error).strip() or type(error).__name__) from None
        finally:
            # Ray sets a handler of its own, which would end the tuner before its trials.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)
        self._is_own = True
        head = _endpoint(ray.get_runtime_context().gcs_address)
        self._head = head if head is not None and _why_silent(head, _LOOK_S) is None else None
        # Standard output is the study's: Ray must not report there what happens to its nodes, which trials report.
        printing: Any = importlib.import_module("ray._private.worker")
        if hasattr(printing, "print_to_stdstream"):
            printing.print_to_stdstream = lambda *_, **__: None
        return ray

    def _check_answers(self) -> None:
        """Refuse an address where nobody listens, for which Ray would look for minutes."""
        place = _endpoint(self._address.rpartition("://")[2])
        if place is not None and (why := _why_silent(place, _CONNECT_S)) is not None:
            raise self._unreachable(why)

    def _unreachable(self, why: str) -> UsageError:
        reported = why.splitlines()[0].partition(". ")[0][:200]
        problem = f"runner ray must reach a Ray cluster at {self._address!r}, but: {reported}"
        return UsageError(problem, hint="start one by `ray start --head`, or give --ray-address HOST:6379")


def _endpoint(address: str) -> tuple[str, int] | None:
    """Return the host and port of an address; None of one that has none, such as auto."""
    host, colon, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if colon and port.isdecimal() else None


def _why_silent(place: tuple[str, int], limit_s: float) -> str | None:
    """Return why nobody answers at a host and port; None where somebody does."""
    try:
        socket.create_connection(place, timeout=limit_s).close()
    except (OSError, OverflowError) as error:
        return str(error)
    return None


def check_address(address: str) -> None:
    """Refuse what is no address, before Ray is asked, which takes a second to load."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1] or 1) < 1 << 16:
        problem = "a Ray cluster's address must be auto, HOST:PORT or ray://HOST:PORT"
        raise UsageError(f"{problem}, but got {address[:80]!r}", hint="give e.g. --ray-address 10.0.0.7:6379")


def named_nodes(rows: Sequence[Mapping[str, Any]]) -> list[RayNode]:
    """Return the nodes that ray.nodes() lists."""
    shared = Counter(row["NodeManagerAddress"] for row in rows)
    return [
        RayNode(
            node_id=row["NodeID"],
            name=row["NodeManagerAddress"]
            + ("" if shared[row["NodeManagerAddress"]] == 1 else f"#{row['NodeID'][:6]}"),
            is_alive=row["Alive"],
            num_gpus=row["Resources"].get("GPU", 0.0),
            num_cpus=row["Resources"].get("CPU", 0.0),
        )
        for row in rows
    ]


def _room(node: RayNode, bundle: Mapping[str, float]) -> int:
    rooms = [int(node.num_cpus / bundle["CPU"])] if bundle["CPU"] else []
    rooms += [int(node.num_gpus / bundle["GPU"])] if "GPU" in bundle else []
    return min(rooms, default=1)
