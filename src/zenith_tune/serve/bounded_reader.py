"""Reads a request within a number of seconds and bytes, however slowly or lavishly it is sent."""

from __future__ import annotations

import io
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class TooMuchError(OSError):
    """Tell that a request is larger than any that this server has an answer for."""


class BoundedReader(io.RawIOBase):
    """Read from a socket until a deadline; a byte now and then does not put it off."""

    def __init__(self, connection: socket.socket, limit_s: float, limit_bytes: int) -> None:
        self._connection = connection
        self._until_s = time.monotonic() + limit_s
        self._left_bytes = limit_bytes

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Read what is there; raise TimeoutError at the deadline, TooMuchError beyond the limit."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the request took too long")
        if self._left_bytes <= 0:
            raise TooMuchError("the request is too large")
        self._connection.settimeout(left_s)
        count = self._connection.recv_into(memoryview(buffer)[: self._left_bytes])
        self._left_bytes -= count
        return count
