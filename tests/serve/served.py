"""A real server on a free port of this machine, and a client for it."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from zenith_tune.serve.server import LiveServer
from zenith_tune.serve.study_index import StudyIndex

Json = dict[str, Any]


@dataclass
class Reply:
    status: int
    headers: Message[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return (gzip.decompress(self.body) if self.headers.get("Content-Encoding") == "gzip" else self.body).decode()

    def json(self) -> Json:
        loaded: Json = json.loads(self.text)
        return loaded


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


@dataclass
class Client:
    server: LiveServer
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def get(self, path: str = "/", **headers: str) -> Reply:
        return self._send(urllib.request.Request(self.base + path, headers={**self.headers, **_named(headers)}))

    def post(self, path: str, *, body: bytes = b"{}", changes: Mapping[str, str | None] | None = None) -> Reply:
        """Send a request as the page would, but for the headers that are given."""
        own: dict[str, str | None] = {
            "Origin": self.base,
            "Content-Type": "application/json",
            "X-Zenithtune-Csrf": self.server.access.csrf,
        }
        headers = {name: value for name, value in {**own, **(changes or {})}.items() if value is not None}
        request = urllib.request.Request(self.base + path, body, {**self.headers, **headers}, method="POST")
        return self._send(request)

    def raw(self, data: bytes, timeout_s: float = 20.0) -> bytes:
        """Send bytes as they are, and return what comes back until the server closes."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=timeout_s) as connection:
            answer = b""
            try:
                connection.sendall(data)
                while piece := connection.recv(65536):
                    answer += piece
            except ConnectionError:
                pass  # what it has no use for, it does not read to its end
            return answer

    @contextmanager
    def events(self, path: str = "/events", **headers: str) -> Iterator[Iterator[Json]]:
        """Listen; each change is yielded with its id."""
        request = urllib.request.Request(self.base + path, headers={**self.headers, **_named(headers)})
        with urllib.request.urlopen(request, timeout=500) as response:
            yield _changes(response)

    def _send(self, request: urllib.request.Request) -> Reply:
        opener = urllib.request.build_opener(_NoRedirect)
        try:
            with opener.open(request, timeout=500) as response:
                return Reply(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.headers, error.read())


def _changes(response: HTTPResponse) -> Iterator[Json]:
    event: dict[str, str] = {}
    for line in response:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            event[name] = value
        elif event.get("event") == "change":
            yield {"id": event["id"], **json.loads(event["data"])}
            event = {}
        else:
            event = {}


def _named(headers: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@contextmanager
def served(
    root: Path, study: str | None = None, *, token: str | None = None, port: int = 0, look_s: float = 0.05
) -> Iterator[Client]:
    """Serve the studies of an output folder, looking at them more often than usual."""
    with serving_of(StudyIndex.open(study, db=None, output_dir=root, look_s=look_s), token, port, look_s) as client:
        yield client


@contextmanager
def serving_of(
    studies: StudyIndex | None, token: str | None = None, port: int = 0, look_s: float = 0.05
) -> Iterator[Client]:
    server = LiveServer(studies, "127.0.0.1", port, token, look_s)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Client(server)
    finally:
        server.shutdown()
        server.close()
        thread.join(500)
