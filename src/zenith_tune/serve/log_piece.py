"""A piece of a trial's log as it stands, of whole lines and with its secrets masked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from zenith_tune.record.log_secrets import mask_lines
from zenith_tune.record.view import TrialView
from zenith_tune.regular_file import open_regular
from zenith_tune.study.files import TrialFolder

MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """Hold a piece, and where the next one begins."""

    text: str = ""
    next_byte: int = 0
    size_bytes: int = 0


def log_piece(each: TrialView, start: int) -> LogPiece:
    """Return what a trial's last run has logged from byte `start` on; of more than 64 KiB, the last.

    A piece begins and ends with a line: the half of a secret is not known for one.
    """
    path = _log(each)
    if path is None:
        return LogPiece()
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            begin = max(0, size - MAX_BYTES, min(start, size))
            # With the byte before it, which tells whether a line begins here.
            file.seek(max(begin - 1, 0))
            data = file.read(min(size - max(begin - 1, 0), MAX_BYTES + 1))
    except OSError:
        return LogPiece()
    if begin > 0:
        dropped = data.find(b"\n") + 1 or len(data)
        begin, data = begin - 1 + dropped, data[dropped:]
    if each.is_running:
        data = data[: data.rfind(b"\n") + 1]
    text = data.decode("utf-8", errors="replace")
    return LogPiece(text="\n".join(mask_lines(text.split("\n"))), next_byte=begin + len(data), size_bytes=size)


def _log(each: TrialView) -> Path | None:
    if each.trial.folder is None:
        return None
    logs = [folder.log for folder in TrialFolder(each.trial.folder).runs()]
    return next((log for log in reversed(logs) if log.is_file()), None)
