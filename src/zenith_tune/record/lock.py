"""Keeps two tuners off one study."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from zenith_tune.errors import StudyError
from zenith_tune.record.storage import open_beside


class StudyLock:
    """Hold a study for one tuner; the kernel lets go of it when the tuner dies, however it dies."""

    def __init__(self, database: Path, study_name: str) -> None:
        # Beside the database, not in the output folder: two tuners may share the one and not the other.
        self._database = database.resolve()
        self._study_name = study_name
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock, or name the process that holds it."""
        file = open_beside(self._database, f".{self._database.name}.{self._study_name}.lock")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise StudyError(
                f"study {self._study_name!r} is being tuned by process {holder}: wait for it, end it, choose another "
                "--study-name, or keep the study on a server by --db postgresql://..., where several tuners share one"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let go of the study."""
        if self._file is not None:
            self._file.close()
            self._file = None
