"""Looks at one study: its digest, with what the logs of running trials say so far."""

from __future__ import annotations

from typing import Any

from zenith_tune.record.source import StudySource
from zenith_tune.record.view import StudyView
from zenith_tune.serve.running_progress import RunningProgress
from zenith_tune.serve.steady_source import SteadySource

_TIMES = ("now_s",)
"""What changes without anything happening."""

Json = dict[str, Any]


class StudyLook:
    """Look again and again at a study that stays the same one."""

    def __init__(self, source: StudySource) -> None:
        from zenith_tune.report.study_digest import StudyDigest

        self.source = SteadySource(source)
        self._inode = self._inode_now()
        self._digest = StudyDigest(self.source)
        self._progress = RunningProgress()

    @property
    def is_of_another_file(self) -> bool:
        """Tell whether the database was replaced: what is remembered of its trials would be of others."""
        return self._inode_now() != self._inode

    def view(self) -> StudyView:
        """Return the study as it stands."""
        return self.source.refresh()

    def stamp(self, view: StudyView) -> object:
        """Return what is the same as long as nothing has changed."""
        return id(view), self._progress.stamps(view.running)

    def told(self, view: StudyView) -> tuple[Json, dict[int, Json]]:
        """Return what is shown of a study, apart from its trials, and those by their numbers."""
        data = self._digest.object()
        running = {each.number: each for each in view.running}
        preset = self._digest.preset(view)
        trials: dict[int, Json] = {trial["number"]: trial for trial in data.pop("trials")}
        for number in running.keys() & trials.keys():
            trials[number] = {**trials[number], "progress": self._progress.of(running[number], view, preset)}
        return {name: value for name, value in data.items() if name not in _TIMES}, trials

    def _inode_now(self) -> int | None:
        try:
            return self.source.database.stat().st_ino if self.source.database is not None else None
        except OSError:
            return None
