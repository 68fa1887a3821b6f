"""One connection: one request is read, answered, and the connection is closed."""

from __future__ import annotations

import contextlib
import io
import time
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any

from zenith_tune.serve.answer import GZIP_FROM_BYTES, Answer, is_gzip_accepted, json_bytes, security_headers, zipped
from zenith_tune.serve.bounded_reader import BoundedReader, TooMuchError
from zenith_tune.serve.routes import Request, Watching

if TYPE_CHECKING:
    from zenith_tune.serve.server import LiveServer

READ_S, SEND_S = 10.0, 30.0
"""For how long a request may be on its way, and an answer."""
MAX_REQUEST_BYTES = 32 * 1024
MAX_BODY_BYTES = 4096
BEAT_S = 10.0
"""How often somebody who watches hears that the server is still there."""
RETRY_MS = 2000


class RequestHandler(BaseHTTPRequestHandler):
    """Read one request and answer it."""

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
        """Answer a GET."""
        self._answer(b"")

    def do_HEAD(self) -> None:
        """Answer a HEAD."""
        self._answer(b"")

    def do_POST(self) -> None:
        """Answer a POST, if it says how long it is."""
        length = self.headers.get("Content-Length") or ""
        if not length.isdecimal() or self.headers.get("Transfer-Encoding"):
            return self._refuse(411, "a request must say its Content-Length")
        if len(length) > 9 or int(length) > MAX_BODY_BYTES:
            return self._refuse(413, f"a request has at most {MAX_BODY_BYTES} bytes")
        return self._answer(self.rfile.read(int(length)))

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse what is no request, in one line."""
        self.request_version = "HTTP/1.1"  # also to what names none, or another
        self._refuse(int(code), "this is no request that the server understands")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a token may be in an address."""

    def _answer(self, body: bytes) -> None:
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
                body = zipped(body)
                headers["Content-Encoding"] = "gzip"
        self.connection.settimeout(SEND_S)
        self.send_response(answer.status)
        for name, value in {**headers, "Content-Type": answer.kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

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
        self.connection.settimeout(SEND_S)
        self.send_response(200)
        for name, value in {**security_headers("text/event-stream"), "Content-Type": "text/event-stream"}.items():
            self.send_header(name, value)
        self.send_header("X-Accel-Buffering", "no")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(b"retry: %d\n\n" % RETRY_MS)
        marker, told_s = watching.marker, time.monotonic()
        while True:
            if watching.study.look() != marker:
                news = watching.study.since(marker)
                marker = str(news["marker"])
                self.wfile.write(b"id: %b\nevent: change\ndata: %b\n\n" % (marker.encode(), json_bytes(news)))
                told_s = time.monotonic()
            elif time.monotonic() - told_s > BEAT_S:
                self.wfile.write(b"event: beat\ndata: {}\n\n")
                told_s = time.monotonic()
            if self.server.is_over.wait(self.server.look_s):
                return
