"""One study as it is being shown: looked at now and then, whoever asks, and sent as what changed."""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.record.control import StudyControl
from zenith_tune.record.folder import StudyFolder
from zenith_tune.record.source import StudySource
from zenith_tune.record.view import StudyView, unfinished
from zenith_tune.serve.running_progress import RunningProgress, SteadySource
from zenith_tune.study.files import Json
from zenith_tune.study.trial import Outcome


class StudyLook:
    """Repeated looks at a study that stays the same one."""

    def __init__(self, source: StudySource) -> None:
        from zenith_tune.report.study_digest import StudyDigest

        self.source = SteadySource(source)
        self._inode = self._inode_now()
        self._digest = StudyDigest(self.source)
        self._progress = RunningProgress()

    @property
    def is_of_another_file(self) -> bool:
        """Whether the database was replaced: what is remembered of its trials would be of others."""
        return self._inode_now() != self._inode

    def stamp(self, view: StudyView) -> object:
        """Return what is the same as long as nothing has changed."""
        return id(view), self._progress.stamps(view.running)

    def snapshot(self, view: StudyView) -> tuple[Json, dict[int, Json]]:
        """Return what is shown of a study, apart from its trials, and those by their numbers."""
        data = self._digest.object()
        del data["now_s"]  # it changes without anything happening
        running = {each.number: each for each in view.running}
        preset = self._digest.preset(view)
        trials: dict[int, Json] = {trial["number"]: trial for trial in data.pop("trials")}
        for number in running.keys() & trials.keys():
            trials[number] = {**trials[number], "progress": self._progress.of(running[number], view, preset)}
        return data, trials

    def _inode_now(self) -> int | None:
        try:
            return self.source.database.stat().st_ino if self.source.database is not None else None
        except OSError:
            return None


def is_tuned(database: Path, study_name: str) -> bool | None:
    """Tell whether a tuner of this machine holds the study's lock; None where that cannot be seen.

    The kernel's list is read, and the lock is not tried: a tuner that starts at that moment would find it taken.
    """
    file = database.resolve()
    try:
        inode = file.with_name(f".{file.name}.{study_name}.lock").stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    # The device is left out: of some file systems the kernel lists another than it reports for the file.
    return any("FLOCK" in line and f":{inode} " in line for line in lines)


QUIET_S = 60.0
"""A study whose tuner cannot be seen counts as ended when nothing has happened for so long."""


class LiveState(StrEnum):
    """What a study does."""

    RUNNING = "running"
    PAUSING = "pausing"
    """It is to pause, and a trial still runs."""
    PAUSED = "paused"
    ENDED = "ended"
    FAILED = "failed"
    """It ended, and no run that did went well."""
    STOPPED = "stopped"
    """Its tuner is gone, and left trials behind that had not ended, or was interrupted in the midst of them."""
    UNREADABLE = "unreadable"

    @property
    def is_over(self) -> bool:
        """Whether nobody is there to ask anything of."""
        return self in (LiveState.ENDED, LiveState.FAILED, LiveState.STOPPED, LiveState.UNREADABLE)


def live_state(source: SteadySource, view: StudyView, *, is_paused: bool) -> LiveState:
    """Return the state of a study, by its tuner's lock, or else by its trials."""
    ended = [each.trial for each in view.trials if each.trial.outcome is not Outcome.CANCELLED]
    has_failed = ended and not any(trial.ok for trial in ended)
    over = LiveState.FAILED if has_failed else LiveState.ENDED
    if source.is_export:
        return over
    tuned = is_tuned(source.database, source.name) if source.database is not None else None
    if tuned is None:
        tuned = bool(view.running) or not view.trials or time.time() - (view.ended_s or 0) < QUIET_S
    if not tuned:
        return LiveState.STOPPED if unfinished(view) else over
    if is_paused:
        return LiveState.PAUSING if view.running else LiveState.PAUSED
    return LiveState.RUNNING


class ChangeLog:
    """Numbered looks at a study, and for each of its parts the look in which it last changed.

    A marker such as `9f31c2d4-17` names a look. One of another server, or of before a trial vanished, is answered with
    everything.
    """

    def __init__(self) -> None:
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._parts: dict[str | int, tuple[int, Any]] = {}
        """Fields by name and trials by number, each with the number of the look that brought it."""

    @property
    def marker(self) -> str:
        """The name of the last look that brought something new."""
        return f"{self._epoch}-{self._number}"

    def take(self, fields: Mapping[str, Any], trials: Mapping[int, Json]) -> bool:
        """Take in a look; tell whether anything has changed."""
        seen = dict[str | int, Any]([*fields.items(), *trials.items()])
        if not self._parts.keys() <= seen.keys():  # something is gone
            self._epoch, self._number, self._parts = secrets.token_hex(4), 0, {}
        known = self._parts
        changed = {key: value for key, value in seen.items() if key not in known or known[key][1] != value}
        self._number += bool(changed)
        self._parts |= {key: (self._number, value) for key, value in changed.items()}
        return bool(changed)

    def since(self, marker: str | None) -> Json:
        """Return what is new since a look, under the marker of now."""
        match = re.fullmatch(r"([0-9a-f]{8})-([0-9]{1,12})", marker or "")
        number = int(match[2]) if match and match[1] == self._epoch and int(match[2]) <= self._number else 0
        new = {key: value for key, (changed, value) in self._parts.items() if changed > number}
        return {
            "marker": self.marker,
            "is_all": number == 0,
            "fields": {key: value for key, value in new.items() if isinstance(key, str)},
            "trials": [value for key, value in new.items() if isinstance(key, int)],
        }


class ControlUnavailable(UsageError):  # noqa: N818 - it says what a study is not in a state for
    """The reason why a request to a study cannot be granted."""


def control_of(view: StudyView) -> StudyControl | None:
    """Return the file by which a study is asked to pause or to end a trial; None where it cannot be written here."""
    folder = view.folder
    if folder is None or not folder.is_dir() or not os.access(folder, os.W_OK):
        return None
    return StudyControl(StudyFolder(folder.parent, folder.name).control)


LOOK_S = 1.0
"""A study is not looked at more often than this, however many watch."""


class LiveStudy:
    """A study as all who watch it see it; safe to use from several threads."""

    def __init__(self, find: Callable[[], StudySource], name: str, look_s: float = LOOK_S) -> None:
        self.name = name
        self._find = find
        self._look: StudyLook | None = None
        self._changes = ChangeLog()
        self._lock, self._asking = threading.Lock(), threading.Lock()
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
        with self._lock:
            self._refresh()
            return {**self._changes.since(marker), "now_s": time.time()}

    def data(self) -> tuple[str, Json]:
        """Return the whole study under its marker."""
        snapshot = self.since(None)
        trials = sorted(snapshot["trials"], key=lambda trial: int(trial["number"]))
        return snapshot["marker"], {**snapshot["fields"], "now_s": snapshot["now_s"], "trials": trials}

    def view(self) -> StudyView:
        with self._lock:
            return self._refresh()

    def pause(self, is_paused: bool) -> None:
        """Ask the study to start no further trial, or to continue."""
        self._ask("pause" if is_paused else "continue", lambda control: control.pause(is_paused))

    def cancel(self, number: int) -> None:
        """Ask for the end of one trial that runs."""

        def cancel(control: StudyControl) -> None:
            if number not in [each.number for each in self.view().running]:
                raise ControlUnavailable(f"trial {number} does not run: only a running trial can be cancelled")
            control.cancel(number)

        self._ask("cancel", cancel)

    def _ask(self, what: str, write: Callable[[StudyControl], None]) -> None:
        view = self.view()
        state = LiveState(self._live["state"])
        if state.is_over:
            why = {LiveState.STOPPED: "its tuner is gone", LiveState.UNREADABLE: "it cannot be read just now"}
            raise ControlUnavailable(f"there is nothing to {what}: study {self.name!r} {why.get(state, 'has ended')}")
        control, hint = control_of(view), "ask where the study is tuned"
        if control is None:
            where = view.folder or "no folder yet"
            raise ControlUnavailable(f"the study's folder ({where}) cannot be written from here", hint=hint)
        try:
            with self._asking:
                write(control)
        except OSError as error:
            raise ControlUnavailable(f"{view.folder} cannot be written ({error.strerror})", hint=hint) from error
        with self._lock:
            self._looked_s = float("-inf")

    def _refresh(self) -> StudyView:
        if time.monotonic() - self._looked_s >= self._look_s:
            try:
                if self._look is None or self._look.is_of_another_file:
                    self._look = StudyLook(self._find())
                self._take(self._look)
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

    def _take(self, look: StudyLook) -> None:
        view = look.source.refresh()
        control = control_of(view)
        state = live_state(look.source, view, is_paused=control is not None and control.is_paused())
        live = {
            "state": str(state),
            "problem": "",
            "can_ask": not state.is_over and control is not None,
            "cancelled": [each.number for each in view.running if control and control.is_cancelled(each.number)],
        }
        seen = (look.stamp(view), live)
        if seen != self._seen:
            fields, trials = look.snapshot(view)
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
