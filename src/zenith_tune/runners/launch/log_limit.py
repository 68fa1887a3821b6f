"""Keeps the log of a trial that prints without end to a limit: its beginning and its end stay, the middle goes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import BinaryIO

from zenith_tune.study.files import open_regular
from zenith_tune.units import MIB

MAX_LOG_BYTES = 200 * MIB
"""Above this a log is cut to half: its first quarter, and as much of its end. Evaluators read 32 MiB of it."""
_PIECE_BYTES = 4 * MIB
_MAX_COPIES = 20
"""How often the end is copied anew where the program printed more than fits meanwhile: its last lines matter most."""
_BLOCK_BYTES = 512
"""What `st_blocks` counts in, on every file system."""


class LogLimit:
    """Cut a log above the limit, while others append to it.

    What a program appends in the moment of the cut, between the last look at the file's size and its truncation, is
    lost and not counted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._head_bytes: int | None = None
        self._left_out_bytes = 0

    def keep(self) -> None:
        """Cut the log if it is above the limit; one that cannot be cut stays as it is."""
        with contextlib.suppress(OSError):
            if _used_bytes(self._path.stat()) > MAX_LOG_BYTES:
                with open_regular(self._path, writable=True) as file:
                    self._cut(file)

    def _cut(self, file: BinaryIO) -> None:
        log = file.fileno()
        if self._head_bytes is None:
            self._head_bytes = _last_line_end(log, MAX_LOG_BYTES // 4)
        # The note of an earlier cut lies between head and tail, and is written anew.
        note_bytes = len(_note(0)) if self._left_out_bytes else 0
        # In place, so that the order holds while the program appends behind it, and no more room is taken.
        for _ in range(_MAX_COPIES):
            first = tail = _next_line_start(log, os.fstat(log).st_size - MAX_LOG_BYTES // 4)
            end = self._head_bytes + len(_note(0))
            while (unread_bytes := os.fstat(log).st_size - tail) > 0 and end < MAX_LOG_BYTES // 2:
                piece = os.pread(log, _PIECE_BYTES, tail)
                tail += len(piece)
                end += os.pwrite(log, piece, end)
            if unread_bytes <= 0:
                break
        else:  # it prints faster than it can be copied
            end += os.pwrite(log, b"\n", end)
        self._left_out_bytes += first - self._head_bytes - note_bytes + unread_bytes
        os.pwrite(log, _note(self._left_out_bytes), self._head_bytes)
        os.ftruncate(log, end)


def _used_bytes(status: os.stat_result) -> int:
    """Return what a log takes on the disk: a program that does not append leaves a hole where it was cut."""
    return min(status.st_size, status.st_blocks * _BLOCK_BYTES)


def _note(left_out_bytes: int) -> bytes:
    return b"[... %20d bytes left out ...]\n" % left_out_bytes


def _last_line_end(log: int, limit: int) -> int:
    """Return the end of the last line that ends before `limit`, or that itself."""
    start = max(0, limit - _PIECE_BYTES)
    found = os.pread(log, limit - start, start).rfind(b"\n")
    return start + found + 1 if found >= 0 else limit


def _next_line_start(log: int, start: int) -> int:
    """Return where the next line begins behind `start`, or that itself."""
    found = os.pread(log, _PIECE_BYTES, start).find(b"\n")
    return start + found + 1 if found >= 0 else start
