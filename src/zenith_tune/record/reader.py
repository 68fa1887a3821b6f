"""Reads a study from its database, again and again and quickly: a trial that has ended is read once."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from zenith_tune.direction import Direction
from zenith_tune.errors import StudyError, UnknownNameError
from zenith_tune.record.created_once import TWIN_OF
from zenith_tune.record.exported_study import remembered
from zenith_tune.record.record import HEADER_KEY, StudyHeader
from zenith_tune.record.search import SEARCH_KEY, StudySearch
from zenith_tune.record.server.url import shown
from zenith_tune.record.storage import database_path
from zenith_tune.record.stored_trial import parameter_value, stored_trial
from zenith_tune.record.study_rows import Query, reading
from zenith_tune.record.view import StudyView, TrialView, refuse_odd, study_of

PROGRESS_KEY = "zenithtune:progress"
"""The study's attribute in which a tuner may keep counts of points that never ran."""
FEW = 500
"""Of more trials than these, the rows of all are read at once."""

_STUDY = """select s.study_id, d.direction from studies s join study_directions d on d.study_id = s.study_id
where s.study_name = :name order by d.objective"""
_ATTRIBUTES = "select key, value_json from study_user_attributes where study_id = :study"
_TRIALS = f"""select trial_id, number, state, datetime_start, datetime_complete from trials t where study_id = :study
and not exists (select 1 from trial_user_attributes a where a.trial_id = t.trial_id and a.key = '{TWIN_OF}')"""
_OF_STUDY = "in (select trial_id from trials where study_id = :study)"
_PARAMS = (
    "select trial_id, param_name, param_value, distribution_json from trial_params where trial_id {} order by param_id"
)
_VALUES = "select trial_id, value from trial_values where trial_id {}"
_USER = "select trial_id, key, value_json from trial_user_attributes where trial_id {}"

Row = tuple[Any, ...]


class StudyReader:
    """Read one study of a database; it holds neither the study's lock nor its database."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self._known: dict[int, tuple[str, TrialView]] = {}
        self._places: dict[Path, Path] = {}
        """Folders of trials as the record has them, and where they are."""

    def view(self) -> StudyView:
        """Return the study as it stands; only trials that changed since the last look are read."""
        with reading(self.url) as query:
            study_id, direction = self._study(query)
            attributes = self._attributes(query(_ATTRIBUTES, {"study": study_id}))
            rows = query(_TRIALS, {"study": study_id})
            self._refresh(query, study_id, rows)
        stored = attributes.get(HEADER_KEY)
        if not isinstance(stored, dict):
            raise StudyError(f"study {self.name!r} is not one of zenithtune's, or has not begun: choose another")
        trials = tuple(self._known[row[0]][1] for row in sorted(rows, key=lambda row: int(row[1])))
        header, study = StudyHeader.from_stored(stored, self.name), study_of(trials, direction)
        refuse_odd(header, self.name)
        folder = _study_folder(trials)
        is_live = any(view.is_running for view in trials)
        kept = {} if is_live else remembered(folder, study)
        progress = attributes.get(PROGRESS_KEY) or kept
        fastest = study.fastest
        own = None if fastest is None else header.command if fastest.is_baseline else fastest.command
        return StudyView(
            name=self.name,
            header=header,
            direction=direction,
            trials=trials,
            study=study,
            folder=folder,
            database=str(database_path(self.url) or shown(self.url)),
            num_pruned=progress.get("num_pruned"),
            num_repeated=progress.get("num_repeated"),
            best_command=kept.get("best_command") or own,
            search=StudySearch.from_json(attributes.get(SEARCH_KEY)),
        )

    def _attributes(self, rows: list[Row]) -> dict[str, Any]:
        try:
            return {key: json.loads(text) for key, text in rows}
        except (TypeError, ValueError) as error:
            raise self._changed("the header", error) from error

    def _changed(self, what: str, error: Exception) -> StudyError:
        law = f"{what} of study {self.name!r} cannot be read ({type(error).__name__}: {error})"
        return StudyError(f"{law}: its database was changed by something else; give another study")

    def _study(self, query: Query) -> tuple[int, Direction]:
        rows = query(_STUDY, {"name": self.name})
        if not rows:
            names = query("select study_name from studies", {})
            raise UnknownNameError("study", self.name, [str(name) for (name,) in names])
        return int(rows[0][0]), Direction[str(rows[0][1])]

    def _refresh(self, query: Query, study_id: int, rows: list[Row]) -> None:
        changed = [row for row in rows if self._known.get(row[0], ("",))[0] != row[2]]
        if not changed:
            return
        ids = [int(row[0]) for row in changed]
        which = f"in ({', '.join(map(str, ids))})" if len(ids) <= FEW else _OF_STUDY
        study = {} if len(ids) <= FEW else {"study": study_id}
        params, values, attributes = (query(sql.format(which), study) for sql in (_PARAMS, _VALUES, _USER))
        stored = _Stored(params, values, attributes)
        for row in changed:
            self._known[row[0]] = (row[2], self._read(row, stored))

    def _read(self, row: Row, stored: _Stored) -> TrialView:
        trial_id, number, state, *times = row
        try:
            params = {name: parameter_value(value, kind) for name, value, kind in stored.params.get(trial_id, [])}
            attributes = {key: json.loads(text) for key, text in stored.attributes.get(trial_id, [])}
            value = next((value for (value,) in stored.values.get(trial_id, [])), None)
            return self._found(stored_trial(int(number), state, (times[0], times[1]), params, value, attributes))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise self._changed(f"trial {number}", error) from error

    def _found(self, view: TrialView) -> TrialView:
        """Return a trial with the folder where it lies now: a whole output folder may have been moved, or copied."""
        folder = view.trial.folder
        if folder is None:
            return view
        parent = folder.parent
        if parent not in self._places:
            self._places[parent] = self._place(parent)
        here = self._places[parent]
        return view if here == parent else replace(view, trial=replace(view.trial, folder=here / folder.name))

    def _place(self, trials: Path) -> Path:
        path, study_folder = database_path(self.url), trials.parent
        if path is None or study_folder.is_dir():
            return trials
        here = path.absolute().parent / study_folder.name / trials.name
        return here if here.is_dir() else trials


class _Stored:
    """Hold rows by trial."""

    def __init__(self, params: Iterable[Row], values: Iterable[Row], attributes: Iterable[Row]) -> None:
        self.params, self.values, self.attributes = _by_trial(params), _by_trial(values), _by_trial(attributes)


def _by_trial(rows: Iterable[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for trial_id, *rest in rows:
        found.setdefault(trial_id, []).append(tuple(rest))
    return found


def _study_folder(trials: Iterable[TrialView]) -> Path | None:
    """Return where the study's last trial lies: a study that goes on elsewhere writes its files there."""
    folders = [view.trial.folder for view in trials if view.trial.folder is not None]
    return folders[-1].parent.parent if folders else None
