"""A study that is read again only once its files have changed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from zenith_tune.record.exported_study import FILE_NAME, ExportedStudy
from zenith_tune.record.reader import StudyReader
from zenith_tune.record.source import StudySource
from zenith_tune.record.storage import database_path
from zenith_tune.record.view import StudyView

SETTLED_S = 2.0
"""A file that was written less than this ago may be written again under the same time."""

Stamp = list[tuple[int, int, int]]


class SteadySource:
    """Stand before a source; a database server is asked every time."""

    def __init__(self, source: StudySource) -> None:
        self.name = source.name
        self.database = _database(source)
        self._source = source
        self._view: StudyView | None = None
        self._stamp: Stamp = []

    @property
    def is_export(self) -> bool:
        """Tell whether this is a study.json, which no tuner writes to."""
        return isinstance(self._source, ExportedStudy)

    def view(self) -> StudyView:
        """Return the study as it was last read."""
        return self._view or self.refresh()

    def refresh(self) -> StudyView:
        """Return the study as it stands: the very same object where nothing has changed."""
        stamp = _stamp(self._files())
        if self._view is None or not stamp or stamp != self._stamp or _is_fresh(stamp):
            self._view = self._source.view()
        self._stamp = stamp
        return self._view

    def _files(self) -> list[Path]:
        if isinstance(self._source, ExportedStudy):
            return [self._source.path]
        if self.database is None:
            return []
        folder = self._view.folder if self._view is not None else None
        beside = [self.database.with_name(f"{self.database.name}{ending}") for ending in ("-wal", "-journal")]
        return [self.database, *beside, *([folder / FILE_NAME] if folder else [])]


def _database(source: StudySource) -> Path | None:
    return database_path(source.url) if isinstance(source, StudyReader) else None


def _stamp(files: Iterable[Path]) -> Stamp:
    stamp = []
    for path in files:
        try:
            status = path.stat()
        except OSError:
            stamp.append((0, 0, 0))
        else:
            stamp.append((status.st_ino, status.st_size, status.st_mtime_ns))
    return stamp


def _is_fresh(stamp: Stamp) -> bool:
    return time.time_ns() - max(written for _, _, written in stamp) < SETTLED_S * 1e9
