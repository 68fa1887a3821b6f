"""What a trial without pods waits for: its turn in a queue, or room in a quota."""

from __future__ import annotations

import time

from zenith_kubernetes.api import ApiError, Cluster
from zenith_kubernetes.manifest import QUEUE_LABEL, Json

_KUEUE = "kueue.x-k8s.io"
_JOB_UID = "kueue.x-k8s.io/job-uid"


class WaitingReasons:
    """The reasons of one trial, asked every few seconds; without the right to ask there are fewer."""

    def __init__(self, cluster: Cluster, pause_s: float) -> None:
        self._cluster, self._pause_s = cluster, pause_s
        self._asked, self._last = float("-inf"), ""

    def of(self, shown: Json, *, has_pods: bool) -> str:
        """Return what the trial waits for, empty where nobody says so."""
        if has_pods:
            return ""
        if time.monotonic() - self._asked > self._pause_s:
            self._asked = time.monotonic()
            try:
                self._last = self._queued(shown) if shown["spec"].get("suspend") else self._refused_pods(shown)
            except ApiError:
                self._last = "suspended" if shown["spec"].get("suspend") else ""
        return self._last

    def _queued(self, shown: Json) -> str:
        queue = (shown["metadata"].get("labels") or {}).get(QUEUE_LABEL)
        if queue is None:
            return "suspended"
        version = self._cluster.get(f"/apis/{_KUEUE}")["preferredVersion"]["groupVersion"]
        uid = shown["metadata"]["uid"]
        found = self._cluster.items(self._cluster.path("workloads", version=version), labelSelector=f"{_JOB_UID}={uid}")
        conditions = (found[0].get("status") or {}).get("conditions") or [] if found else []
        held = [each for each in conditions if each["type"] == "QuotaReserved" and each["status"] == "False"]
        message = " ".join(str(held[0].get("message")).split())[:200] if held else "waits for its turn"
        return f"Kueue queue {queue}: {message}"

    def _refused_pods(self, shown: Json) -> str:
        """Return why pods are not made, which an event of the Job says: such as a quota that is used up."""
        events = self._cluster.items(self._cluster.path("events"), fieldSelector="reason=FailedCreate")
        name = shown["metadata"]["name"]
        own = [each for each in events if str(each.get("involvedObject", {}).get("name")).startswith(name)]
        if not own:
            return ""
        message = " ".join(str(own[-1].get("message")).split())[:300]
        return f"quota: {message}" if "exceeded quota" in message else message
