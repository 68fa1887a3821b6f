"""A small stand-in for the API server: it keeps objects, and answers as the real one does to what a tuner asks."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Json = dict[str, Any]
Logs = Callable[[str, str, dict[str, str]], Iterator[bytes]]
"""A node's log of a container: pod, container and query."""

KINDS = {
    "/api/v1": ["pods", "services", "events", "nodes", "configmaps", "resourcequotas"],
    "/apis/batch/v1": ["jobs"],
    "/apis/coordination.k8s.io/v1": ["leases"],
    "/apis/trainer.kubeflow.org/v1alpha1": ["trainjobs", "clustertrainingruntimes"],
    "/apis/kueue.x-k8s.io/v1beta1": ["workloads"],
}
GROUPS = {"/apis/kueue.x-k8s.io": {"preferredVersion": {"groupVersion": "kueue.x-k8s.io/v1beta1"}}}
WITHOUT_NAMESPACE = ("nodes", "clustertrainingruntimes")
REASONS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    409: "AlreadyExists",
    422: "Invalid",
    503: "Unavailable",
}
_PATH = re.compile(
    r"(?P<root>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<kind>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>status|log|binding))?"
)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.-]{0,61})?[A-Za-z0-9]|")


class RefusedError(Exception):
    def __init__(self, status: int, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.status, self.reason = status, reason or REASONS.get(status, "")


class ApiServer:
    """Objects of a cluster, served over HTTP on the loopback device."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str, str], Json] = {}
        """By kind in the plural, namespace and name."""
        self.logs: Logs = lambda pod, container, query: iter(())
        self.quota: dict[str, int] = {}
        """The most objects of a kind."""
        self.runtimes: set[str] = {"torch-distributed"}
        self.calls: list[tuple[str, str]] = []
        self.failures: list[tuple[int, str, bool]] = []
        """Answers to the next calls: status, what the call must contain, and whether it is carried out all the same."""
        self._versions = itertools.count(1)
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self._open: set[socket.socket] = set()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        outer = self

        class Handler(_Handler):
            api = outer

        server = _Server(("127.0.0.1", self._port), Handler)
        self._port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self._server = server

    def stop(self) -> None:
        """End it and every connection; what it keeps is kept, as etcd would."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()
        self.cut()

    def cut(self) -> None:
        """End every connection, also those of logs that are followed."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def all(self, kind: str) -> list[Json]:
        with self.lock:
            return [copy.deepcopy(each) for (own, _, _), each in self.objects.items() if own == kind]

    def create(self, root: str, kind: str, namespace: str, body: Json, *, dry_run: bool = False) -> Json:
        made = copy.deepcopy(body)
        metadata = made.setdefault("metadata", {})
        if "generateName" in metadata and not metadata.get("name"):
            metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
        self._check(kind, made)
        with self.lock:
            key = (kind, namespace, metadata["name"])
            if key in self.objects:
                raise RefusedError(409, f'{kind} "{metadata["name"]}" already exists')
            num = sum(own == kind and other == namespace for own, other, _ in self.objects)
            if num >= self.quota.get(kind, 10_000):
                raise RefusedError(403, f'{kind} "{metadata["name"]}" is forbidden: exceeded quota: team, used: {num}')
            metadata.update(namespace=namespace, uid=str(uuid.uuid4()), resourceVersion=str(next(self._versions)))
            metadata["creationTimestamp"] = stamp()
            if kind == "pods":
                made.setdefault("status", {"phase": "Pending"})
            if not dry_run:
                self.objects[key] = made
            return copy.deepcopy(made)

    def _check(self, kind: str, made: Json) -> None:
        """Refuse what the real server refuses of the objects that a tuner makes."""
        metadata, spec = made["metadata"], made.get("spec") or {}
        if not _NAME.fullmatch(str(metadata.get("name"))):
            raise RefusedError(422, f"metadata.name: Invalid value: {metadata.get('name')!r}")
        for name, text in (metadata.get("labels") or {}).items():
            if not isinstance(text, str) or not _LABEL.fullmatch(text):
                raise RefusedError(422, f"metadata.labels: Invalid value: {name}={text!r}")
        for name, text in (metadata.get("annotations") or {}).items():
            if not isinstance(text, str):
                raise RefusedError(400, f"metadata.annotations: {name} is no text")
        if kind == "jobs":
            pod = spec["template"]["spec"]
            if not pod.get("containers") or any("image" not in each for each in pod["containers"]):
                raise RefusedError(422, "spec.template.spec.containers[0].image: Required value")
            if pod.get("restartPolicy") not in ("Never", "OnFailure"):
                raise RefusedError(422, "spec.template.spec.restartPolicy: Required value")
        if kind == "trainjobs" and (spec.get("runtimeRef") or {}).get("name") not in self.runtimes:
            raise RefusedError(422, "spec.runtimeRef: Invalid value: it must be created before the TrainJob")

    def patch(self, key: tuple[str, str, str], body: Json) -> Json:
        with self.lock:
            own = self._existing(key)
            expected = (body.get("metadata") or {}).get("resourceVersion")
            if expected not in (None, own["metadata"]["resourceVersion"]):
                raise RefusedError(409, f"{key[2]}: the object has been modified", "Conflict")
            before = copy.deepcopy(own)
            merged = _merged(own, body)
            if key[0] == "trainjobs" and merged["spec"].get("trainer") != before["spec"].get("trainer"):
                raise RefusedError(422, "spec.trainer: Invalid value: field is immutable")
            if key[0] == "jobs" and merged["spec"].get("template") != before["spec"].get("template"):
                raise RefusedError(422, "spec.template: Invalid value: field is immutable")
            merged["metadata"]["resourceVersion"] = str(next(self._versions))
            self.objects[key] = merged
            return copy.deepcopy(merged)

    def delete(self, key: tuple[str, str, str], body: Json) -> Json:
        """Delete an object: a pod once its node has ended it, what others belong to with them in the foreground."""
        with self.lock:
            own = self._existing(key)
            expected = (body.get("preconditions") or {}).get("uid")
            if expected not in (None, own["metadata"]["uid"]):
                raise RefusedError(409, f"{key[2]}: the UID in the precondition does not match", "Conflict")
            metadata = own["metadata"]
            grace_s = body.get("gracePeriodSeconds")
            if key[0] == "pods" and own["spec"].get("nodeName") and grace_s != 0:
                grace_s = 30 if grace_s is None else grace_s
                if grace_s < metadata.get("deletionGracePeriodSeconds", grace_s + 1):
                    metadata.update(deletionTimestamp=stamp(), deletionGracePeriodSeconds=grace_s)
                    metadata["resourceVersion"] = str(next(self._versions))
            elif key[0] in ("jobs", "trainjobs"):
                metadata.setdefault("deletionTimestamp", stamp())
                # The controllers take it away once all that belongs to it is gone.
            else:
                self.objects.pop(key)
            return copy.deepcopy(own)

    def remove(self, kind: str, namespace: str, name: str) -> None:
        with self.lock:
            self.objects.pop((kind, namespace, name), None)

    def _existing(self, key: tuple[str, str, str]) -> Json:
        if key not in self.objects:
            raise RefusedError(404, f'{key[0]} "{key[2]}" not found')
        return self.objects[key]

    def answer(self, method: str, target: str, body: Json) -> Json | Iterator[bytes]:
        url = urlsplit(target)
        query = {name: texts[-1] for name, texts in parse_qs(url.query).items()}
        with self.lock:
            self.calls.append((method, target))
        if url.path in GROUPS:
            return GROUPS[url.path]
        match = _PATH.fullmatch(unquote(url.path))
        if match is None or match["kind"] not in KINDS.get(match["root"], []):
            raise RefusedError(404, "the server could not find the requested resource")
        kind, namespace, name, part = match["kind"], match["namespace"] or "", match["name"], match["part"]
        if method == "POST" and part != "binding":
            return self.create(match["root"], kind, namespace, body, dry_run="dryRun" in query)
        key = (kind, namespace, name or "")
        if method == "POST":
            return self.patch(key, {"spec": {"nodeName": body["target"]["name"]}})
        if method == "DELETE":
            return self.delete(key, body)
        if method == "PATCH":
            return self.patch(key, body)
        if part == "log":
            with self.lock:
                pod = self._existing(key)
                container = query.get("container", "")
                states = pod["status"].get("containerStatuses") or []
                if not any("waiting" not in each["state"] for each in states if each["name"] == container):
                    raise RefusedError(400, f'container "{container}" in pod "{name}" is waiting to start')
            return self.logs(name or "", container, query)
        with self.lock:
            if name:
                return copy.deepcopy(self._existing(key))
            own = [each for (other, place, _), each in self.objects.items() if (other, place) == (kind, namespace)]
            found = [each for each in own if _selects(query, each)]
            return {"kind": "List", "items": copy.deepcopy(found[: int(query.get("limit", 10_000))])}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of connections that ended."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ApiServer

    def setup(self) -> None:
        super().setup()
        self.api._open.add(self.connection)

    def finish(self) -> None:
        self.api._open.discard(self.connection)
        super().finish()

    def handle_all(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        failure = next((each for each in self.api.failures if each[1] in f"{self.command} {self.path}"), None)
        try:
            if failure is not None:
                self.api.failures.remove(failure)
                if failure[2]:
                    self.api.answer(self.command, self.path, body)
                if failure[0] == 0:  # the answer is lost
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                raise RefusedError(failure[0], "made to fail")
            answer = self.api.answer(self.command, self.path, body)
        except RefusedError as error:
            text = json.dumps({"kind": "Status", "message": str(error), "reason": error.reason, "code": error.status})
            self._send(error.status, text)
            return
        if isinstance(answer, dict):
            self._send(201 if self.command == "POST" else 200, json.dumps(answer))
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):
            for chunk in answer:
                self.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
            self.wfile.write(b"0\r\n\r\n")

    do_GET = do_POST = do_PATCH = do_DELETE = handle_all  # noqa: N815

    def _send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Print nothing."""


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _merged(own: Json, patch: Json) -> Json:
    merged = dict(own)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = _merged(own[name] if isinstance(own.get(name), dict) else {}, value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def _selects(query: dict[str, str], shown: Json) -> bool:
    labels = shown["metadata"].get("labels") or {}
    selector = query.get("labelSelector", "")
    if match := re.fullmatch(r"(\S+) in \((.+)\)", selector):
        return labels.get(match[1]) in match[2].split(",")
    for term in filter(None, selector.split(",")):
        name, equals, value = term.partition("=")
        if labels.get(name) != value if equals else name not in labels:
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        name, _, value = term.partition("=")
        found: Any = shown
        for step in name.split("."):
            found = (found or {}).get(step)
        if found != value:
            return False
    return True
