"""The server of `zenithtune serve`: a bounded number of connections, a thread each."""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import sys
import threading
from http.server import ThreadingHTTPServer
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.serve.access import Access, is_loopback
from zenith_tune.serve.live_study import LOOK_S
from zenith_tune.serve.request_handler import RequestHandler
from zenith_tune.serve.routes import Routes
from zenith_tune.serve.study_index import StudyShelf

MAX_CONNECTIONS = 64
MAX_WATCHERS = 32
"""Pages that are open take a connection each; the rest is for what they ask."""
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 2\r\nConnection: close\r\n\r\n"


class LiveServer(ThreadingHTTPServer):
    """Serve the studies of a shelf until it is closed."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, shelf: StudyShelf, host: str, port: int, token: str | None, look_s: float = LOOK_S) -> None:
        self.is_over = threading.Event()
        self.watchers = threading.BoundedSemaphore(MAX_WATCHERS)
        self.look_s = look_s
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._host = host.strip("[]")
        self.address_family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        try:
            super().__init__((self._host, port), RequestHandler)
        except (OSError, OverflowError, UnicodeError) as error:
            raise _unusable(self._host, port, error) from error
        self.access = Access(token, self.port)
        self.routes = Routes(shelf, self.access)

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """Where a browser finds it, the token included."""
        is_any = self._host in ("0.0.0.0", "::")
        name = socket.gethostname() if is_any else f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{name}:{self.port}/" + (f"?token={self.access.token}" if self.access.token else "")

    @property
    def is_local(self) -> bool:
        """Tell whether only this machine reaches it."""
        return is_loopback(self._host)

    def server_bind(self) -> None:
        """Take the port, without asking a name server what this machine is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self._host, self.port

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, or turn it away where too many are open."""
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        request.setblocking(False)
        with contextlib.suppress(OSError):
            request.send(_BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer one connection in its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Tell what went wrong with one connection; the others are served on."""
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):
            self.noticed(error)

    def noticed(self, error: BaseException) -> None:
        """Say on the terminal what no browser should hear."""
        print(f"zenithtune: serve: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End all that is being sent, and give the port back."""
        self.is_over.set()
        self.server_close()


def _unusable(host: str, port: int, error: Exception) -> UsageError:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.EADDRINUSE:
        return UsageError(f"port {port} of {host} is in use: give another --port, or none to have a free one taken")
    if code == errno.EACCES:
        return UsageError(f"port {port} is kept for the system: give a --port from 1024 on")
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return UsageError(f"--host {host} cannot be listened on ({reason}): give an address of this machine")
