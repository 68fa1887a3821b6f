"""What a viewer may ask of a study: to pause, to go on, to end one trial."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.record.control import StudyControl
from zenith_tune.record.folder import StudyFolder
from zenith_tune.record.view import StudyView


class ControlUnavailable(UsageError):  # noqa: N818 - it tells what a study is not in a state for
    """Tell why a wish cannot be granted."""


class ControlRequests:
    """Ask by the file in the study's folder; where that is on another machine, nothing can be asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: tuple[Path, StudyControl] | None = None

    def can_ask(self, view: StudyView) -> bool:
        """Tell whether the study's folder is here and may be written."""
        return view.folder is not None and view.folder.is_dir() and os.access(view.folder, os.W_OK)

    def is_paused(self, view: StudyView) -> bool:
        """Tell whether somebody asked for a pause."""
        return self.can_ask(view) and self._of(view).is_paused()

    def cancelled(self, view: StudyView) -> list[int]:
        """Return the running trials whose end was asked for."""
        if not self.can_ask(view):
            return []
        return [each.number for each in view.running if self._of(view).is_cancelled(each.number)]

    def pause(self, view: StudyView, is_paused: bool) -> None:
        """Ask the study to start no further trial, or to go on."""
        with self._lock:
            self._written(view, lambda control: control.pause(is_paused))

    def cancel(self, view: StudyView, number: int) -> None:
        """Ask for the end of a trial that runs."""
        if number not in [each.number for each in view.running]:
            raise ControlUnavailable(f"trial {number} does not run: only a running trial can be cancelled")
        with self._lock:
            self._written(view, lambda control: control.cancel(number))

    def _written(self, view: StudyView, ask: Callable[[StudyControl], None]) -> None:
        if not self.can_ask(view):
            where = view.folder or "no folder yet"
            raise ControlUnavailable(
                f"the study's folder ({where}) cannot be written from here", hint="ask where the study is tuned"
            )
        try:
            ask(self._of(view))
        except OSError as error:
            raise ControlUnavailable(
                f"{view.folder} cannot be written ({error.strerror})", hint="ask where the study is tuned"
            ) from error

    def _of(self, view: StudyView) -> StudyControl:
        assert view.folder is not None
        path = StudyFolder(view.folder.parent, view.folder.name).control
        if self._control is None or self._control[0] != path:
            self._control = (path, StudyControl(path))
        return self._control[1]
