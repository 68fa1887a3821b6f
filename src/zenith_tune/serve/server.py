"""The server of `zenithtune serve`: a bounded number of connections, a thread each."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Mapping
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.serve.access import Access, is_loopback
from zenith_tune.serve.answer import (
    GZIP_FROM_BYTES,
    Answer,
    BoundedReader,
    TooMuchError,
    is_gzip_accepted,
    json_bytes,
    security_headers,
)
from zenith_tune.serve.live_study import LOOK_S
from zenith_tune.serve.planner import PlannerRoutes
from zenith_tune.serve.routes import Request, Routes, Watching
from zenith_tune.serve.study_index import StudyIndex

READ_S, SEND_S = 10.0, 30.0
"""For how long a request may be on its way, and an answer."""
MAX_REQUEST_BYTES = 32 * 1024
MAX_BODY_BYTES = 4096
BEAT_S = 10.0
"""Seconds between two signs of life to a page."""


class RequestHandler(BaseHTTPRequestHandler):
    """The answer to one request."""

    server: LiveServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "zenithtune", ""

    def setup(self) -> None:
        """Put bounds on what is read and how long it takes."""
        super().setup()
        # What is refused before it is read has an answer all the same.
        self.headers, self.command, self.requestline, self.request_version = HTTPMessage(), "", "", "HTTP/1.1"
        self.rfile = io.BufferedReader(BoundedReader(self.connection, READ_S, MAX_REQUEST_BYTES))

    def handle(self) -> None:
        """Answer one request; whoever is too slow, too large or gone is left."""
        self.close_connection = True
        try:
            self.handle_one_request()
        except TooMuchError:
            with contextlib.suppress(OSError):
                self._refuse(431, "the request is too large")
        except OSError:
            pass
        self.close_connection = True

    def do_GET(self) -> None:
        self._answer(b"")

    do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

    def do_POST(self) -> None:
        """Answer a POST, if it says how long it is."""
        length = self.headers.get("Content-Length") or ""
        if not length.isdecimal() or self.headers.get("Transfer-Encoding"):
            return self._refuse(411, "a request must say its Content-Length")
        if len(length) > 9 or int(length) > MAX_BODY_BYTES:
            return self._refuse(413, f"a request has at most {MAX_BODY_BYTES} bytes")
        return self._answer(self.rfile.read(int(length)))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        self.request_version = "HTTP/1.1"  # also to what names none, or another
        self._refuse(int(code), "this is no request that the server understands")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a token may be in an address."""

    def _answer(self, body: bytes) -> None:
        self.server.has_asked(self.request)
        request = Request(method=self.command, target=self.path, headers=self.headers, body=body)
        try:
            answer = self.server.routes.answer(request)
        except Exception as error:  # whatever it is, the others are served on
            self.server.noticed(error)
            answer = Answer.line(500, "the server failed here: its terminal says how")
        if isinstance(answer, Watching):
            self._watch(answer)
        else:
            self._send(answer)

    def _refuse(self, status: int, line: str) -> None:
        self._send(Answer.line(status, line))

    def _send(self, answer: Answer) -> None:
        body, headers = answer.body, {**security_headers(answer.kind), **answer.headers}
        if len(body) >= GZIP_FROM_BYTES:
            headers["Vary"] = "Accept-Encoding"
            if is_gzip_accepted(self.headers.get("Accept-Encoding") or ""):
                body = gzip.compress(body, 3, mtime=0)  # sent once: more effort takes longer than it saves
                headers["Content-Encoding"] = "gzip"
        self._send_head(answer.status, {**headers, "Content-Type": answer.kind, "Content-Length": str(len(body))})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_head(self, status: int, headers: Mapping[str, str]) -> None:
        self.connection.settimeout(SEND_S)
        self.send_response(status)
        for name, value in {**headers, "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()

    def _watch(self, watching: Watching) -> None:
        """Send what changes until the browser leaves or the server ends."""
        if not self.server.watchers.acquire(blocking=False):
            return self._refuse(503, "too many pages are open: close some")
        try:
            self._send_events(watching)
        finally:
            self.server.watchers.release()
        return None

    def _send_events(self, watching: Watching) -> None:
        kind = "text/event-stream"
        self._send_head(200, {**security_headers(kind), "Content-Type": kind, "X-Accel-Buffering": "no"})
        if self.command == "HEAD":
            return
        self.wfile.write(b"retry: 2000\n\n")
        marker, sent_s = watching.marker, time.monotonic()
        while True:
            if watching.study.look() != marker:
                news = watching.study.since(marker)
                marker = str(news["marker"])
                self.wfile.write(b"id: %b\nevent: change\ndata: %b\n\n" % (marker.encode(), json_bytes(news)))
                sent_s = time.monotonic()
            elif time.monotonic() - sent_s > BEAT_S:
                self.wfile.write(b"event: beat\ndata: {}\n\n")
                sent_s = time.monotonic()
            if self.server.is_over.wait(self.server.look_s):
                return


MAX_CONNECTIONS = 64
_DROP_S = 1.0
"""How long a connection that is dropped may take to make room."""
MAX_WATCHERS = 32
"""Pages that are open take a connection each; the rest is for what they ask."""
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 2\r\nConnection: close\r\n\r\n"


class LiveServer(ThreadingHTTPServer):
    """A server of the studies of an index, or of the planner where there is none."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(
        self,
        studies: StudyIndex | None,
        host: str,
        port: int,
        token: str | None,
        look_s: float = LOOK_S,
        socket_path: Path | None = None,
    ) -> None:
        self.is_over = threading.Event()
        self.watchers = threading.BoundedSemaphore(MAX_WATCHERS)
        self.look_s = look_s
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._silent: dict[Any, None] = {}
        """Connections that have asked nothing yet, the oldest first."""
        self._silent_lock = threading.Lock()
        self._host, self._socket_path = host.strip("[]"), socket_path
        self.address_family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            if socket_path is not None:
                self.address_family = socket.AF_UNIX
                _remove_stale(socket_path)
            super().__init__(str(socket_path) if socket_path else (self._host, port), RequestHandler)  # type: ignore[arg-type]
        except (OSError, OverflowError, UnicodeError) as error:
            raise _unusable(self._host, port, error, socket_path) from error
        self.access = Access(token, self.port)
        self.routes = PlannerRoutes(self.access) if studies is None else Routes(studies, self.access)

    @property
    def port(self) -> int:
        """The port that it listens on; 0 for a socket of the file system."""
        return int(self.server_address[1]) if self._socket_path is None else 0

    @property
    def address(self) -> str:
        """Where a browser finds it, the token included; of a socket, its path."""
        if self._socket_path is not None:
            return str(self._socket_path)
        is_any = self._host in ("0.0.0.0", "::")
        name = socket.gethostname() if is_any else f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{name}:{self.port}/" + (f"?token={self.access.token}" if self.access.token else "")

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return self._socket_path is not None or is_loopback(self._host)

    def server_bind(self) -> None:
        """Take the port, without asking a name server what this machine is called."""
        mask = os.umask(0o177) if self._socket_path is not None else None  # nobody else may connect, not even briefly
        try:
            socketserver.TCPServer.server_bind(self)
        finally:
            if mask is not None:
                os.umask(mask)
        self.server_name, self.server_port = self._host, self.port

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread; where too many are open, one that has asked nothing yet makes room."""
        if self._connections.acquire(blocking=False) or (
            self._drop_silent() and self._connections.acquire(timeout=_DROP_S)
        ):
            with self._silent_lock:
                self._silent[request] = None
            super().process_request(request, client_address)
            return
        request.setblocking(False)
        with contextlib.suppress(OSError):
            request.send(_BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._connections.release()

    def has_asked(self, request: Any) -> None:
        """Note that a connection is no longer silent."""
        with self._silent_lock:
            self._silent.pop(request, None)

    def _drop_silent(self) -> bool:
        """End the connection that has been silent for longest, if there is one."""
        with self._silent_lock:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                return False
            del self._silent[oldest]
        with contextlib.suppress(OSError):
            oldest.shutdown(socket.SHUT_RDWR)
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what went wrong with one connection; the others are served on."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.noticed(error)

    def noticed(self, error: BaseException) -> None:
        """Print on the terminal what no browser should see."""
        print(f"zenithtune: serve: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End all that is being sent, and give the port back."""
        self.is_over.set()
        self.server_close()
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    """Remove a stale socket; anything else that is there stays, and is in the way."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(ConnectionRefusedError):
            probe.connect(str(path))
            return
        path.unlink(missing_ok=True)


def _unusable(host: str, port: int, error: Exception, socket_path: Path | None) -> UsageError:
    code = error.errno if isinstance(error, OSError) else None
    if socket_path is not None:
        return UsageError(f"the socket {socket_path} cannot be made ({error})", hint="give another --socket")
    if code == errno.EADDRINUSE:
        return UsageError(
            f"port {port} of {host} is in use", hint="give another --port, or none to have a free one taken"
        )
    if code == errno.EACCES:
        return UsageError(f"port {port} is kept for the system", hint="give a --port from 1024 on")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"--host {host} cannot be listened on ({reason})", hint="give an address of this machine")
