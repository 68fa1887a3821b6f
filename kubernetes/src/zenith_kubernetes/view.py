"""What the API server shows of all trials under way, asked once for all of them."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from zenith_kubernetes.api import ApiError, ApiSilentError, Cluster
from zenith_kubernetes.manifest import Json
from zenith_kubernetes.pods import POD_LABELS
from zenith_kubernetes.trial import TRIAL_LABEL

_MAX_PAUSE_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The objects of the trials and their pods, by the objects' names."""

    at: float
    """When the server was asked."""
    objects: Mapping[str, Json]
    pods: Mapping[str, list[Json]]


class ClusterView:
    """The trials of a runner as the server shows them; asked again no more often than every `pause_s`."""

    def __init__(self, cluster: Cluster, kind: str, jobs_path: str, pause_s: float) -> None:
        self.cluster, self.jobs_path, self.label = cluster, jobs_path, POD_LABELS[kind]
        self.silence = ""
        """The server's last failure to answer; empty once it has."""
        self._pause_s, self._least_s = pause_s, pause_s
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._asked = float("-inf")

    def look(self) -> Snapshot | None:
        """Return what the server last showed, not older than the pause; None where it does not answer."""
        with self._lock:
            if time.monotonic() - self._asked >= self._pause_s:
                self._last = self._ask()
                self._asked = time.monotonic()
            return self._last

    def forget(self) -> None:
        """Have the next look ask the server."""
        self._asked = float("-inf")

    def pods(self, name: str) -> list[Json]:
        """Return the pods of one trial, asked now."""
        return self.cluster.items(self.cluster.path("pods"), labelSelector=f"{self.label}={name}")

    def _ask(self) -> Snapshot | None:
        at = time.monotonic()
        try:
            shown = self.cluster.items(self.jobs_path, labelSelector=TRIAL_LABEL)
            objects = {each["metadata"]["name"]: each for each in shown}
            pods: dict[str, list[Json]] = defaultdict(list)
            ours = f"{self.label} in ({','.join(objects)})"  # a namespace may have thousands of others
            for each in self.cluster.items(self.cluster.path("pods"), labelSelector=ours) if objects else ():
                pods[each["metadata"]["labels"][self.label]].append(each)
        except ApiError as error:
            if not isinstance(error, ApiSilentError) and error.status not in (401, 410):
                raise
            self.silence, self._pause_s = str(error), min(self._pause_s * 1.5 + 0.05, _MAX_PAUSE_S)
            return None
        self.silence, self._pause_s = "", self._least_s
        return Snapshot(at=at, objects=objects, pods=pods)
