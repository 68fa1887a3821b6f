"""What goes back to a browser, and the headers that keep others from misusing it."""

from __future__ import annotations

import io
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


TEXT, JSON, HTML = "text/plain; charset=utf-8", "application/json", "text/html; charset=utf-8"
GZIP_FROM_BYTES = 2048
_NOTHING = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
# What the page itself may do is in the page: it names its script by its hash.
_PAGE = "frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src 'none'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer to a request."""

    status: int = 200
    body: bytes = b""
    kind: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def line(cls, status: int, text: str, **headers: str) -> Answer:
        return cls(status=status, body=f"{text}\n".encode(), headers=headers)

    @classmethod
    def json(cls, content: Any, status: int = 200) -> Answer:
        return cls(status=status, body=json_bytes(content), kind=JSON)


def json_bytes(content: Any) -> bytes:
    """Return content as small JSON."""
    return json.dumps(content, allow_nan=False, separators=(",", ":"), default=str).encode()


def security_headers(kind: str) -> dict[str, str]:
    """Return what every answer says to the browser that gets it."""
    return {
        "Content-Security-Policy": _PAGE if kind == HTML else _NOTHING,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache, private",
    }


def is_gzip_accepted(accepted: str) -> bool:
    """Tell whether a browser takes gzip."""
    ways = {way.partition(";")[0].strip().lower(): way.partition(";")[2].strip() for way in accepted.split(",")}
    return "gzip" in ways and ways["gzip"].replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")


class TooMuchError(OSError):
    """A request that is larger than any this server answers."""


class BoundedReader(io.RawIOBase):
    """A reader of a socket until a deadline; a byte now and then does not put it off."""

    def __init__(self, connection: socket.socket, limit_s: float, limit_bytes: int) -> None:
        self._connection = connection
        self._until_s = time.monotonic() + limit_s
        self._left_bytes = limit_bytes

    def readable(self) -> bool:
        """Return True: it can be read."""
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
