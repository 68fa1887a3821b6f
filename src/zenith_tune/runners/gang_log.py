"""One log of a command that runs on several nodes at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

_MAX_HELD_BYTES = 64 * 1024


class GangLog:
    """Write whole lines: those of the first node as they are, those of the others behind `[name] `.

    >>> log = GangLog(["n1", "n2"], lambda text: print(text.decode(), end=""))
    >>> log.feed(1, b"loss 1\\nlo"), log.feed(0, b"step 1\\n"), log.close(1)
    [n2] loss 1
    step 1
    [n2] lo
    (None, None, None)
    """

    def __init__(self, names: Sequence[str], write: Callable[[bytes], object]) -> None:
        self._prefixes = [b"" if rank == 0 else f"[{name}] ".encode() for rank, name in enumerate(names)]
        self._held = [b"" for _ in names]
        self._write = write
        self._lock = threading.Lock()

    def feed(self, rank: int, text: bytes) -> None:
        """Take what a node printed; the beginning of a line is held until the rest of it comes."""
        with self._lock:
            if rank == 0 and len(self._held) == 1:
                self._write(text)
                return
            held = self._held[rank] + text
            end = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
            lines, rest = held[:end].splitlines(keepends=True), held[end:]
            if len(rest) > _MAX_HELD_BYTES:
                lines, rest = [*lines, rest + b"\n"], b""
            self._held[rank] = rest
            if lines:
                self._write(b"".join(self._prefixes[rank] + line for line in lines))

    def close(self, rank: int) -> None:
        """Write what a node printed last, as a line of its own."""
        with self._lock:
            rest, self._held[rank] = self._held[rank], b""
            if rest:
                self._write(self._prefixes[rank] + rest + b"\n")
