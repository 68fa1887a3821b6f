"""The pods of a trial as the API server shows them: where they run, what they wait for and how they ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zenith_kubernetes.manifest import Json

POD_LABELS = {"TrainJob": "jobset.sigs.k8s.io/jobset-name", "Job": "batch.kubernetes.io/job-name"}
"""The label by which the pods of a kind name the object that they belong to."""
_REPLICATED_JOB = "jobset.sigs.k8s.io/replicatedjob-name"
_INITIALIZERS = ("dataset-initializer", "model-initializer")
_INDEX = "batch.kubernetes.io/job-completion-index"
_LOST_REASONS = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})
_HOPELESS = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError"}
    | {"RegistryUnavailable", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
"""What a container waits for that seldom comes: its image, or a secret or a volume that is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod."""

    name: str
    rank: int = 0
    node: str = ""
    phase: str = "Pending"
    is_going: bool = False
    """Whether somebody has asked for its end."""
    container: str = ""
    is_started: bool = False
    exit_code: int | None = None
    lost: str = ""
    """The reason why its machine, or its place there, is gone."""
    waits_for: str = ""
    hopeless: str = ""
    """What it waits for and seldom gets, such as an image that cannot be pulled."""
    note: str = ""
    """What its container's end says of itself, such as OOMKilled."""

    @classmethod
    def read(cls, shown: Mapping[str, Any], container: str | None) -> Pod:
        metadata, spec, status = shown["metadata"], shown.get("spec") or {}, shown.get("status") or {}
        names = [each["name"] for each in spec.get("containers") or []]
        name: str = next((each for each in (container or "", "node") if each in names), names[0] if names else "")
        states = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        own: Json = next((each for each in states if each.get("name") == name), {})
        ended = _ended(own)
        waiting = [wait for each in states if (wait := (each.get("state") or {}).get("waiting"))]
        hopeless = next((each for each in waiting if each.get("reason") in _HOPELESS), None)
        labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
        return cls(
            name=metadata["name"],
            rank=int(labels.get(_INDEX) or annotations.get(_INDEX) or 0),
            node=spec.get("nodeName") or "",
            phase=str(status.get("phase") or "Pending"),
            is_going="deletionTimestamp" in metadata,
            container=name,
            is_started=ended is not None or bool((own.get("state") or {}).get("running")),
            exit_code=None if ended is None else int(ended.get("exitCode", 1)),
            lost=_lost(status),
            waits_for=_waits_for(status, waiting),
            hopeless=_said(hopeless) if hopeless else "",
            note=_said(ended) if ended and ended.get("reason") not in (None, "Completed", "Error") else "",
        )


def trainer_pods(shown: Iterable[Json], container: str | None) -> list[Pod]:
    """Return the pods that train, by their number; those that only fetch data or a model are left out."""

    def part(pod: Json) -> str | None:
        return (pod["metadata"].get("labels") or {}).get(_REPLICATED_JOB)

    own = [Pod.read(each, container) for each in shown if part(each) not in _INITIALIZERS]
    return sorted(own, key=lambda pod: (pod.rank, pod.name))


def _ended(state: Mapping[str, Any]) -> Json | None:
    """Return how a container ended; one that was started again ended at its first time."""
    for name in ("lastState", "state"):
        ended: Json | None = (state.get(name) or {}).get("terminated")
        if ended:
            return ended
    return None


def _lost(status: Mapping[str, Any]) -> str:
    if status.get("reason") in _LOST_REASONS:
        return _said(status)
    conditions = status.get("conditions") or []
    found = next((each for each in conditions if each["type"] == "DisruptionTarget" and each["status"] == "True"), None)
    return _said(found) if found else ""


def _waits_for(status: Mapping[str, Any], waiting: list[Json]) -> str:
    for each in status.get("conditions") or []:
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return _said(each)
    return _said(waiting[0]) if waiting else ""


def _said(shown: Mapping[str, Any]) -> str:
    """Return a reason and its message in one line."""
    reason, message = str(shown.get("reason") or ""), " ".join(str(shown.get("message") or "").split())
    return ": ".join(filter(None, (reason, message)))[:300]
