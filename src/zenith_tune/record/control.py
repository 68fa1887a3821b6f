"""What somebody else asks of a study that runs: to pause, to continue, to end one trial."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from zenith_tune.study.files import write_json

_PAUSED, _CANCELLED = "paused", "cancelled"


class StudyControl:
    """The requests to a study, in a file of its folder that the tuner looks at now and then.

    A file, because whoever asks is another process; and no signal, because it may be another user's.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._requests: dict[str, Any] = {}

    def is_paused(self) -> bool:
        """Tell whether no further trial should start."""
        return self._read().get(_PAUSED) is True

    def is_cancelled(self, number: int) -> bool:
        """Tell whether somebody asked for the end of this trial."""
        asked = self._read().get(_CANCELLED)
        return isinstance(asked, list) and number in asked

    def pause(self, is_paused: bool = True) -> None:
        """Ask the study to start no further trial, or to continue."""
        self._write({**self._read(), _PAUSED: is_paused})

    def cancel(self, number: int) -> None:
        """Ask for the end of one trial."""
        asked = self._read().get(_CANCELLED)
        numbers = asked if isinstance(asked, list) else []
        self._write({**self._read(), _CANCELLED: sorted({*numbers, number})})

    def forget(self) -> None:
        """Forget all requests: a study that starts, or resumes, was asked for after them."""
        self._path.unlink(missing_ok=True)
        self._seen, self._requests = None, {}

    def _read(self) -> dict[str, Any]:
        try:
            status = self._path.stat()
        except OSError:
            return {}
        seen = (status.st_mtime_ns, status.st_ino)
        if seen != self._seen:
            # What cannot be read is no request: the file may hold anything.
            with contextlib.suppress(OSError, ValueError):
                stored = json.loads(self._path.read_text(encoding="utf-8"))
                self._requests = stored if isinstance(stored, dict) else {}
            self._seen = seen
        return self._requests

    def _write(self, requests: dict[str, Any]) -> None:
        write_json(self._path, requests)
        self._seen = None
