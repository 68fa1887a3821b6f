"""How far trials are that still run, by what their logs say so far."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from zenith_tune.presets.megatron.log import read_steps
from zenith_tune.record.reader import FILE_NAME, ExportedStudy, StudyReader
from zenith_tune.record.restored_preset import FROM_ANOTHER_RELEASE, RestoredPreset
from zenith_tune.record.server.url import database_path
from zenith_tune.record.source import StudySource
from zenith_tune.record.view import StudyView, TrialView
from zenith_tune.study.files import Json, TrialFolder
from zenith_tune.study.trial_log import TrialLog
from zenith_tune.units import MIB

if TYPE_CHECKING:
    from zenith_tune.evaluators.base import TuningEvaluator


Stamp = tuple[int, int, int]


class RunningProgress:
    """The logs of running trials; one that has not grown is not read again."""

    def __init__(self) -> None:
        self._evaluators: dict[str, TuningEvaluator | None] = {}
        """By the description of the study's own; None where it cannot be restored."""
        self._read: dict[Path, tuple[Stamp, Json]] = {}

    def stamps(self, running: Iterable[TrialView]) -> list[Stamp]:
        """Return what changes where any log has grown."""
        return [_stamp(path) for path in map(last_log, running) if path is not None]

    def of(self, each: TrialView, view: StudyView, preset: RestoredPreset) -> Json:
        """Return a running trial's iteration, and its value so far where that is known."""
        path = last_log(each)
        if path is None:
            return {}
        stamp = _stamp(path)
        if path not in self._read or self._read[path][0] != stamp:
            self._read[path] = (stamp, self._progress(path, each, view, preset))
        return self._read[path][1]

    def _progress(self, path: Path, each: TrialView, view: StudyView, preset: RestoredPreset) -> Json:
        text = TrialLog(path).text(MIB // 2)
        log = text[: text.rfind("\n") + 1]  # half a number reads as a whole one
        snapshot: Json = {}
        if steps := read_steps(log).steps:
            snapshot = {"iteration": steps[-1].number, "step_s": steps[-1].seconds}
        description = view.header.evaluator
        if description not in self._evaluators:
            self._evaluators[description] = _restored_evaluator(description, preset)
        if (evaluator := self._evaluators[description]) is None:
            return snapshot
        seconds = time.time() - (each.started_s or time.time())
        metadata = {
            "trial_id": each.number,
            "command": each.trial.command,
            "parameters": dict(each.trial.params),
            "duration": seconds,
        }
        try:
            progress = evaluator.progress(log, metadata)
        except Exception:  # an evaluator is a plug-in: what it cannot read yet is not shown
            progress = None
        if progress is None:
            return snapshot
        return {"iteration": progress.num_iterations, **snapshot, "value": progress.latest, "unit": progress.unit}


def _restored_evaluator(description: str, preset: RestoredPreset) -> TuningEvaluator | None:
    """Return the study's evaluator if it is the preset's own, or that at another objective."""
    if preset.preset is None:
        return None
    try:
        own = preset.preset.evaluator()
        ways = [own, *(own.with_objective(name) for name in own.objectives)]
    except FROM_ANOTHER_RELEASE:
        return None
    return next((each for each in ways if each.describe() == description), None)


def last_log(each: TrialView) -> Path | None:
    """Return the log of a trial's last run; None where nothing has run yet."""
    if each.trial.folder is None:
        return None
    logs = [folder.log for folder in TrialFolder(each.trial.folder).runs()]
    return next((log for log in reversed(logs) if log.is_file()), None)


def _stamp(path: Path) -> Stamp:
    """Return inode, size and time of a file, by which a change shows; zeros where there is none."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


SETTLED_S = 2.0


class SteadySource:
    """A source that is read only when it has changed; a database server is asked every time."""

    def __init__(self, source: StudySource) -> None:
        self.name = source.name
        self.database = database_path(source.url) if isinstance(source, StudyReader) else None
        self._source = source
        self._view: StudyView | None = None
        self._stamp: list[Stamp] = []

    @property
    def is_export(self) -> bool:
        """Whether this is a study.json, which no tuner writes to."""
        return isinstance(self._source, ExportedStudy)

    def view(self) -> StudyView:
        return self._view or self.refresh()

    def refresh(self) -> StudyView:
        """Return the study as it stands: the very same object where nothing has changed."""
        stamp = [_stamp(path) for path in self._files()]
        # A file that was just written may be written again under the same time.
        is_fresh = time.time_ns() - max((written for _, _, written in stamp), default=0) < SETTLED_S * 1e9
        if self._view is None or not stamp or stamp != self._stamp or is_fresh:
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
