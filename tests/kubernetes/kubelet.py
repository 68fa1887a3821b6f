"""A stand-in for a node: it runs a pod's command as a process, keeps its log, and reports how it ended.

It works by the API alone, so that it serves the stand-in of the API server and the real one alike.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zenith_kubernetes.api import ApiError, ApiSilentError, Cluster

Json = dict[str, Any]
_INDEX = "batch.kubernetes.io/job-completion-index"


class Kubelet:
    """Nodes with so many GPUs each, on which pods run side by side."""

    def __init__(self, cluster: Cluster, folder: Path, nodes: dict[str, int], pause_s: float = 0.05) -> None:
        self.cluster, self.folder, self.nodes, self._pause_s = cluster, folder, nodes, pause_s
        self.missing_images: set[str] = {"no/such:image"}
        self.processes: dict[str, _Process] = {}
        """By the pods' names."""
        self.started: list[str] = []
        """The pods whose command was started, each as often as it was."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for each in self.processes.values():
            each.kill(signal.SIGKILL)

    def lose(self, node: str) -> None:
        """Have a node fail with all that runs there, as the node's life cycle controller reports it."""
        self.nodes.pop(node)
        for pod in self._pods():
            if pod["spec"].get("nodeName") == node:
                self.processes[pod["metadata"]["name"]].kill(signal.SIGKILL)
                self.disrupt(
                    pod["metadata"]["name"], "DeletionByTaintManager", "Taint manager: deleting due to NoExecute"
                )
                self.cluster.delete(self.cluster.path("pods", pod["metadata"]["name"]), {"gracePeriodSeconds": 0})

    def disrupt(self, pod: str, reason: str, message: str) -> None:
        condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
        self._status(pod, {"conditions": [{**condition, "lastTransitionTime": now()[:19] + "Z"}]})

    def log(self, pod: str, container: str, query: dict[str, str]) -> Iterator[bytes]:
        """Yield the lines of a log, each behind the time when it was printed."""
        process, index = self.processes.get(pod), 0
        since = query.get("sinceTime", "")
        while process is not None:
            is_over = process.is_read
            lines, index = process.lines[index:], len(process.lines)
            text = b"".join(line for line in lines if line[:19].decode() >= since[:19])
            if text:
                yield text
            if is_over or query.get("follow") != "true":
                return
            time.sleep(0.01)

    def _run(self) -> None:
        while not self._over.wait(self._pause_s):
            with contextlib.suppress(ApiError):
                for pod in self._pods():
                    with contextlib.suppress(ApiError):
                        self._attend(pod)

    def _pods(self) -> list[Json]:
        while True:
            try:
                return self.cluster.items(self.cluster.path("pods"))
            except ApiSilentError:
                if self._over.wait(0.05):
                    return []

    def _attend(self, pod: Json) -> None:
        name, spec, status = pod["metadata"]["name"], pod["spec"], pod.get("status") or {}
        process = self.processes.get(name)
        if "deletionTimestamp" in pod["metadata"]:
            if process is None or process.end(pod["metadata"].get("deletionGracePeriodSeconds", 30)):
                self.cluster.delete(self.cluster.path("pods", name), {"gracePeriodSeconds": 0})
            return
        if status.get("phase") in ("Succeeded", "Failed"):
            return
        if not spec.get("nodeName"):
            self._schedule(pod)
        elif process is None and spec["nodeName"] in self.nodes:
            self._start(pod)
        elif process is not None and (code := process.poll()) is not None:
            ended = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
            self._status(name, {"phase": "Failed" if code else "Succeeded", "containerStatuses": [_state(pod, ended)]})

    def _schedule(self, pod: Json) -> None:
        pods = self._pods()
        asked = _gpus(pod)
        busy = dict.fromkeys(self.nodes, 0)
        for each in pods:
            if each["spec"].get("nodeName") in busy and each["status"]["phase"] in ("Pending", "Running"):
                busy[each["spec"]["nodeName"]] += _gpus(each)
        labels = pod["metadata"].get("labels") or {}
        gang = labels.get("batch.kubernetes.io/job-name")
        peers = {
            each["spec"].get("nodeName")
            for each in pods
            if (each["metadata"].get("labels") or {}).get("batch.kubernetes.io/job-name") == gang
        }
        fit = [node for node, num in self.nodes.items() if num - busy[node] >= asked]
        name = pod["metadata"]["name"]
        if not fit:
            why = f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Insufficient nvidia.com/gpu."
            held = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
            if not any(each.get("message") == why for each in pod["status"].get("conditions") or []):
                self._status(name, {"conditions": [held]})
            return
        node = next((each for each in fit if each not in peers), fit[0])
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self.cluster.create(f"{self.cluster.path('pods', name)}/binding", binding)

    def _start(self, pod: Json) -> None:
        container, name = pod["spec"]["containers"][0], pod["metadata"]["name"]
        if container["image"] in self.missing_images:
            waiting = {"waiting": {"reason": "ImagePullBackOff", "message": f"Back-off pulling {container['image']!r}"}}
            if (pod["status"].get("containerStatuses") or [{}])[0].get("state") != waiting:
                self._status(name, {"phase": "Pending", "containerStatuses": [_state(pod, waiting)]})
            return
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "HOSTNAME": name}
        for each in container.get("env") or []:
            if "value" in each:
                environment[each["name"]] = _expanded(each["value"], environment)
        index = (pod["metadata"].get("annotations") or {}).get(_INDEX)
        if index is not None:
            environment.setdefault("JOB_COMPLETION_INDEX", index)
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        self.processes[name] = _Process([_expanded(word, environment) for word in words], environment, self.folder)
        self.started.append(name)
        self._status(
            name, {"phase": "Running", "containerStatuses": [_state(pod, {"running": {"startedAt": now()[:19] + "Z"}})]}
        )

    def _status(self, pod: str, status: Json) -> None:
        """Report a pod's status, as often as it takes."""
        while not self._over.is_set():
            try:
                self.cluster.patch(f"{self.cluster.path('pods', pod)}/status", {"status": status})
                return
            except ApiSilentError:
                time.sleep(0.05)


class _Process:
    """A container's process, its output split into lines with the time of each."""

    def __init__(self, argv: list[str], environment: dict[str, str], folder: Path) -> None:
        self.lines: list[bytes] = []
        self.is_read = False
        self._asked_at: float | None = None
        self._child = subprocess.Popen(
            argv,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def poll(self) -> int | None:
        code = self._child.poll()
        if code is None or not self.is_read:
            return None
        return code if code >= 0 else 128 - code

    def end(self, grace_s: float) -> bool:
        """End it as a node does, with a signal first; returns whether it is over."""
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self.kill(signal.SIGTERM)
        elif time.monotonic() - self._asked_at > grace_s:
            self.kill(signal.SIGKILL)
        return self._child.poll() is not None and self.is_read

    def kill(self, signum: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signum)

    def _read(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self.lines.append(f"{now()} ".encode() + line)
        self._child.wait()
        self.kill(signal.SIGKILL)  # a container ends with all that it holds
        self._child.stdout.close()
        self.is_read = True


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.{time.time_ns() % 10**9:09d}Z"


def _gpus(pod: Json) -> int:
    limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return int(limits.get("nvidia.com/gpu", 0))


def _state(pod: Json, state: Json) -> Json:
    container = pod["spec"]["containers"][0]
    own = {"name": container["name"], "image": container["image"], "imageID": "", "restartCount": 0}
    return {**own, "ready": "running" in state, "state": state}


def _expanded(text: str, environment: dict[str, str]) -> str:
    """Fill in $(NAME), and make $ of $$, as a node does."""

    def read(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\((\w+)\)", read, text)
