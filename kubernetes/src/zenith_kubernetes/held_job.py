"""A job that asks to be tuned before it runs: what its annotations say, and how it is held and released."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from zenith_kubernetes.api import ApiError, Cluster
from zenith_kubernetes.manifest import QUEUE_LABEL, JobManifest, Json
from zenith_kubernetes.trial import unpacking
from zenith_tune.errors import UsageError
from zenith_tune.registry import parse_pairs

OPTIMIZE, STATE, REASON = "zenithtune/optimize", "zenithtune/state", "zenithtune/reason"
QUEUE = "zenithtune/queue"
"""The queue that a held job is to wait in once it is released."""
RELEASE_LABEL = "zenithtune/release"
DEFAULT_HOURS = 1
"""The most hours of a study whose job names no budget."""
_BUDGETS = ("n_trials", "gpu_hours", "max_hours")
_OPTIONS = (
    *("preset", "cluster", "model", "gpus", "gbs", "seq", "space", "objective", "train_hours", "timeout", "patience"),
    *_BUDGETS,
)
_PLAIN = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", re.ASCII)
"""A name that is no path of the watcher's machine."""
_MOST_BYTES = 200 * 1024


class State(StrEnum):
    """How far a job has come."""

    HELD = "held"
    TUNING = "tuning"
    READY = "ready"
    """Made anew with the better command, and not started yet."""
    RELEASED = "released"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class HeldJob:
    """One annotated job as the server shows it; each change is refused where it has changed meanwhile."""

    cluster: Cluster
    shown: Json

    @property
    def manifest(self) -> JobManifest:
        return JobManifest.of(self.shown)

    @property
    def uid(self) -> str:
        return str(self.shown["metadata"]["uid"])

    @property
    def name(self) -> str:
        return str(self.shown["metadata"]["name"])

    @property
    def state(self) -> str:
        return self._annotations().get(STATE, "")

    @property
    def is_over(self) -> bool:
        """Whether it has ended or somebody deletes it."""
        conditions = (self.shown.get("status") or {}).get("conditions") or []
        ended = any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)
        return ended or "deletionTimestamp" in self.shown["metadata"]

    @property
    def is_suspended(self) -> bool:
        return bool(self.shown["spec"].get("suspend"))

    @property
    def age_s(self) -> float:
        made = datetime.fromisoformat(str(self.shown["metadata"]["creationTimestamp"]))
        return (datetime.now(UTC) - made).total_seconds()

    def options(self) -> list[str]:
        """Return the options of `zenithtune optimize` that its annotation asks for."""
        pairs = parse_pairs(self._annotations()[OPTIMIZE], OPTIMIZE, "preset=megatron-lm,gpu-hours=2")
        given = {name.replace("-", "_"): text for name, text in pairs.items()}
        for name, text in given.items():
            if name not in _OPTIONS:
                raise UsageError(f"{OPTIMIZE} takes no option {name!r}: it knows {', '.join(_OPTIONS)}")
            if name in ("preset", "cluster", "model") and (not _PLAIN.fullmatch(text) or text.endswith(".py")):
                raise UsageError(f"{OPTIMIZE}: {name} must be a name, but got {text[:60]!r}")
        if not any(name in given for name in _BUDGETS):
            given["max_hours"] = str(DEFAULT_HOURS)
        return [f"--{name.replace('_', '-')}={text}" for name, text in given.items()]

    def hold(self) -> None:
        """Keep it from starting, also where it has only just been submitted."""
        queue = (self.shown["metadata"].get("labels") or {}).get(QUEUE_LABEL)
        self._patch({STATE: State.HELD, QUEUE: queue}, labels={QUEUE_LABEL: None}, spec={"suspend": True})

    def note(self, state: State) -> None:
        self._patch({STATE: state})

    def release(self, state: State, reason: str, *, starts: bool = True) -> None:
        """Let it start, in the queue where it belongs in one; at once with the note that it was let go."""
        queue = self._annotations().get(QUEUE) or self.manifest.queue
        # Kueue starts what is in a queue of it.
        spec = {} if queue or not starts else {"suspend": False}
        self._patch(
            {STATE: state, REASON: reason[:1000], QUEUE: None}, labels={QUEUE_LABEL: queue} if queue else {}, spec=spec
        )
        self.report(state, reason)

    def report(self, state: State, reason: str) -> None:
        """Leave an event; without the right to, only the annotation says it."""
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        about = {"apiVersion": self.shown["apiVersion"], "kind": self.shown["kind"], "name": self.name, "uid": self.uid}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{self.name}."},
            "involvedObject": {**about, "namespace": self.cluster.namespace},
            "reason": "Tuned" if state is State.RELEASED else "LeftUnchanged",
            "message": reason[:1000],
            "type": "Normal",
            "source": {"component": "zenithtune"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self.cluster.create(self.cluster.path("events"), event)
        except ApiError:
            return

    def replacement(self, command: str, study: Path, reason: str) -> JobManifest:
        """Return the same job with a better command and the files of the study that it names, not started yet."""
        named = [path for path in sorted(study.rglob("*")) if path.is_file() and str(path) in command]
        unpack = unpacking(study, named, str(study))
        own = self.manifest
        made = own.with_argv(["sh", "-c", f"{unpack}{command}"]) if unpack else own.with_command(command)
        made = made.labelled(annotations={STATE: State.READY, REASON: reason[:1000]}).suspended(True)
        if len(json.dumps(made.document)) > _MOST_BYTES:
            raise UsageError("the job with its better command is too large to be kept while it is replaced")
        return made

    def _annotations(self) -> dict[str, str]:
        return {**(self.shown["metadata"].get("annotations") or {})}

    def _patch(
        self,
        annotations: Mapping[str, str | None],
        *,
        labels: Mapping[str, str | None] | None = None,
        spec: Mapping[str, Any] | None = None,
    ) -> None:
        version = self.shown["metadata"]["resourceVersion"]
        body: Json = {
            "metadata": {"resourceVersion": version, "annotations": {**annotations}, "labels": {**(labels or {})}}
        }
        if spec:
            body["spec"] = {**spec}
        self.cluster.patch(self.cluster.job_path(self.manifest, self.name), body)
