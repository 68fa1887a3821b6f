"""One study as it is being shown: looked at now and then, whoever asks, and told by what changed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.record.source import StudySource
from zenith_tune.record.view import StudyView
from zenith_tune.serve.change_log import ChangeLog
from zenith_tune.serve.control import NotNow, StudyWishes
from zenith_tune.serve.live_state import LiveState, live_state
from zenith_tune.serve.study_look import StudyLook

LOOK_S = 1.0
"""A study is not looked at more often than this, however many watch."""

Json = dict[str, Any]


class LiveStudy:
    """Look at a study for all who watch it; safe to use from several threads."""

    def __init__(self, find: Callable[[], StudySource], name: str, look_s: float = LOOK_S) -> None:
        self.name = name
        self._find = find
        self._look: StudyLook | None = None
        self._wishes = StudyWishes()
        self._changes = ChangeLog()
        self._lock = threading.Lock()
        self._look_s = look_s
        self._looked_s = float("-inf")
        self._seen: object = None
        self._view: StudyView | None = None
        self._live: Json = {}
        self._error: UsageError | None = None

    def look(self) -> str:
        """Return the marker of the study as it stands; raise what keeps it from being read, if it never was."""
        with self._lock:
            self._refresh()
            return self._changes.marker

    def since(self, marker: str | None) -> Json:
        """Return what is new since a marker, and when."""
        with self._lock:
            self._refresh()
            return {**self._changes.since(marker), "now_s": time.time()}

    def data(self) -> tuple[str, Json]:
        """Return the whole study under its marker."""
        told = self.since(None)
        trials = sorted(told["trials"], key=lambda trial: int(trial["number"]))
        return told["marker"], {**told["fields"], "now_s": told["now_s"], "trials": trials}

    def view(self) -> StudyView:
        """Return the study as it was last seen."""
        with self._lock:
            return self._refresh()

    def pause(self, is_paused: bool) -> None:
        """Ask the study to start no further trial, or to go on."""
        view = self.view()
        self._refuse_if_over("pause" if is_paused else "go on with")
        self._wishes.pause(view, is_paused)
        self._look_again()

    def cancel(self, number: int) -> None:
        """Ask for the end of one trial."""
        view = self.view()
        self._refuse_if_over("cancel")
        self._wishes.cancel(view, number)
        self._look_again()

    def _refuse_if_over(self, what: str) -> None:
        state = LiveState(self._live["state"])
        if state.is_over:
            why = {LiveState.STOPPED: "its tuner is gone", LiveState.UNREADABLE: "it cannot be read just now"}
            raise NotNow(f"there is nothing to {what}: study {self.name!r} {why.get(state, 'has ended')}")

    def _look_again(self) -> None:
        with self._lock:
            self._looked_s = float("-inf")

    def _refresh(self) -> StudyView:
        if time.monotonic() - self._looked_s >= self._look_s:
            try:
                self._take(self._opened())
                self._error = None
            except UsageError as error:
                self._error = error
                self._take_error(error)
            finally:
                # Also a database that cannot be read is not asked again at once.
                self._looked_s = time.monotonic()
        if self._view is None:
            assert self._error is not None
            raise self._error
        return self._view

    def _opened(self) -> StudyLook:
        if self._look is None or self._look.is_of_another_file:
            self._look = StudyLook(self._find())
        return self._look

    def _take(self, look: StudyLook) -> None:
        view = look.view()
        state = live_state(look.source, view, is_paused=self._wishes.is_paused(view))
        live = {
            "state": str(state),
            "problem": "",
            "can_ask": not state.is_over and self._wishes.can_ask(view),
            "cancelled": self._wishes.cancelled(view),
        }
        seen = (look.stamp(view), live)
        if seen != self._seen:
            fields, trials = look.told(view)
            self._changes.take({**fields, "live": live}, trials)
        self._seen, self._view, self._live = seen, view, live

    def _take_error(self, error: UsageError) -> None:
        """Keep what was last seen, and say that it is no longer what is there."""
        self._look, self._seen = None, None
        if self._view is None:
            return
        known = self._changes.since(None)
        self._live = {**self._live, "state": str(LiveState.UNREADABLE), "problem": str(error), "can_ask": False}
        trials = {trial["number"]: trial for trial in known["trials"]}
        self._changes.take({**known["fields"], "live": self._live}, trials)
