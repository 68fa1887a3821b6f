"""The studies that are shown, one that is named or all of a database, and what a list says of each."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from zenith_tune import __version__
from zenith_tune.errors import StudyError, UnknownNameError, UsageError
from zenith_tune.record.folder import DATABASE_NAME, DEFAULT_OUTPUT_DIR
from zenith_tune.record.reader import StudyReader, study_names
from zenith_tune.record.server.url import shown
from zenith_tune.record.source import StudySource, find_study
from zenith_tune.record.storage import database_url, expanded
from zenith_tune.serve.live_study import LOOK_S, LiveState, LiveStudy, control_of, live_state
from zenith_tune.serve.running_progress import SteadySource
from zenith_tune.study.files import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedStudy:
    """A study in a list."""

    name: str
    state: LiveState
    preset: str = ""
    num_trials: int = 0
    """The user's own command is not counted."""
    best: float | None = None
    """The value of the fastest run, which may be the user's own command."""
    unit: str = ""
    gain: float | None = None
    """The gain over the user's own command; None where there is nothing to compare."""
    started_s: float | None = None
    """Seconds since 1970."""


def listed_study(source: StudySource) -> ListedStudy:
    """Return what there is to say of a study; one that cannot be read is listed as such."""
    steady = SteadySource(source)
    try:
        view = steady.view()
    except UsageError:
        return ListedStudy(name=source.name, state=LiveState.UNREADABLE)
    control = control_of(view)
    fastest, gain = view.study.fastest, view.study.gain
    return ListedStudy(
        name=view.name,
        state=live_state(steady, view, is_paused=control is not None and control.is_paused()),
        preset=view.header.preset,
        num_trials=sum(each.trial.is_searched for each in view.trials),
        best=None if fastest is None else fastest.value,
        unit=view.unit,
        gain=0.0 if gain is not None and fastest is view.baseline else gain,
        started_s=view.started_s or view.search.begun_s or None,
    )


def list_object(sources: Iterable[StudySource], place: str, address: Callable[[str], str | None]) -> Json:
    """Return all studies as the data of a page; `address` says where each has a page of its own."""
    return {
        "kind": "studies",
        "made_by": f"zenithtune {__version__}",
        "title": "All studies",
        "place": place,
        "now_s": time.time(),
        "studies": [{**asdict(study), "href": address(study.name)} for study in map(listed_study, sources)],
    }


NAMES_S = 5.0
"""Seconds for which a list of studies is reused."""


class StudyIndex:
    """Studies by name; safe to use from several threads."""

    def __init__(self, source: StudySource | None, url: str | None, look_s: float = LOOK_S) -> None:
        self._source, self._url, self._look_s = source, url, look_s
        self._lock = threading.Lock()
        self._studies: OrderedDict[str, LiveStudy] = OrderedDict()
        self._names: list[str] = []
        self._listed_s = float("-inf")

    @classmethod
    def open(cls, study: str | None, *, db: str | None, output_dir: Path | None, look_s: float = LOOK_S) -> StudyIndex:
        """Return the studies of a database, or of that of a named study."""
        if study is not None:
            source = find_study(study, db=db, output_dir=output_dir)
            return cls(source, source.url if isinstance(source, StudyReader) else None, look_s)
        root = expanded(output_dir) if output_dir else DEFAULT_OUTPUT_DIR
        url = database_url(db) if db is not None else database_url((root / DATABASE_NAME).absolute())
        studies = cls(None, url, look_s)
        if not studies.names():
            raise StudyError(f"{db or root / DATABASE_NAME} holds no study yet: begin one by zenithtune optimize")
        return studies

    def names(self) -> list[str]:
        """Return the names of all studies that can be shown, the newest first."""
        if self._url is None:
            return [self._source.name] if self._source is not None else []
        with self._lock:
            if time.monotonic() - self._listed_s > NAMES_S:
                try:
                    self._names = study_names(self._url)
                except StudyError:
                    if not self._names:  # else the database is away for now
                        raise
                self._listed_s = time.monotonic()
            return self._names

    def get(self, name: str | None = None) -> LiveStudy:
        """Return the study of this name; without one, the study that was asked for, or else the newest."""
        if name is None:
            name = self._source.name if self._source is not None else next(iter(self.names()), "")
        with self._lock:
            if name in self._studies:
                self._studies.move_to_end(name)
                return self._studies[name]
        self._found(name)
        with self._lock:
            study = self._studies.setdefault(name, LiveStudy(lambda: self._found(name), name, self._look_s))
            while len(self._studies) > 8:  # the least recently used one is closed first
                self._studies.popitem(last=False)
            return study

    def list_object(self) -> Json:
        """Return all studies as the data of their page."""
        place = shown(self._url) if self._url is not None else ""
        return list_object(map(self._found, self.names()), place, lambda name: f"/?study={quote(name, safe='')}")

    def _found(self, name: str) -> StudySource:
        if self._source is not None and name == self._source.name and not isinstance(self._source, StudyReader):
            return self._source
        if self._url is None or name not in self.names():
            raise UnknownNameError("study", name, self.names())
        return StudyReader(self._url, name)
