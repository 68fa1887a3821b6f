"""A port of its own for each trial that runs beside others."""

from __future__ import annotations

import contextlib
import socket
import threading

_TRIES = 100


class Ports:
    """Hand out ports that are free and that no other trial was handed."""

    def __init__(self) -> None:
        self._taken: set[int] = set()
        self._lock = threading.Lock()

    def take(self) -> int:
        """Return a port; it is the caller's until it is given back."""
        with self._lock:
            for _ in range(_TRIES):
                with contextlib.closing(socket.socket()) as probe:
                    probe.bind(("127.0.0.1", 0))
                    port = int(probe.getsockname()[1])
                if port not in self._taken:
                    self._taken.add(port)
                    return port
        raise OSError("no free port was found")

    def give_back(self, port: int) -> None:
        """Take a port back."""
        with self._lock:
            self._taken.discard(port)
