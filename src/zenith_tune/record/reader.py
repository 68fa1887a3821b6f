"""Reads a study from its database, again and again and quickly: a trial that has ended is read once."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from zenith_tune.errors import StudyError, UnknownNameError, UsageError
from zenith_tune.record.record import HEADER_KEY, StudyHeader
from zenith_tune.record.search import NUMBERS, SEARCH_KEY, TEXTS, StudySearch, finite, measured
from zenith_tune.record.server.claims import TWIN_OF
from zenith_tune.record.server.url import connect_args, driver_url, is_server, shown
from zenith_tune.record.storage import database_path
from zenith_tune.record.stored_trial import parameter_value, stored_trial
from zenith_tune.record.view import StudyView, TrialView, refuse_odd, study_of
from zenith_tune.study.files import open_regular
from zenith_tune.study.parameters import Direction
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import MIB

Query = Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]]
"""Answer a statement with `:names` in it."""
BUSY_S = 10.0
"""How long a reader waits for a writer that is in the middle of a commit."""


@contextmanager
def reading(url: str) -> Iterator[Query]:
    """Open a database for reading, an SQLite file by itself and a server through its SQLAlchemy driver."""
    path = database_path(url)
    with _sqlite(path) if path is not None else server_rows(url) as query:
        yield query


def study_names(url: str) -> list[str]:
    """Return the names of all studies of a database, those begun last first."""
    with reading(url) as query:
        return [str(name) for (name,) in query("select study_name from studies order by study_id desc", {})]


@contextmanager
def server_rows(url: str) -> Iterator[Query]:
    """Read a database by SQLAlchemy, which Optuna brings along."""
    from zenith_tune.record.storage import clear_errors

    with clear_errors(url):
        import sqlalchemy

        options = {"poolclass": sqlalchemy.pool.NullPool, "connect_args": connect_args(url) if is_server(url) else {}}
        engine = sqlalchemy.create_engine(driver_url(url), **options)
        with engine.connect() as connection:

            def query(sql: str, values: Mapping[str, Any]) -> list[tuple[Any, ...]]:
                return [tuple(row) for row in connection.execute(sqlalchemy.text(sql), dict(values))]

            yield query


@contextmanager
def _sqlite(path: Path) -> Iterator[Query]:
    if not path.is_file():
        raise StudyError(f"there is no database {path}", hint="give --output-dir or --db of the study, or its folder")
    try:
        with closing(_connected(path)) as connection:
            yield lambda sql, values: connection.execute(sql, dict(values)).fetchall()
    except sqlite3.Error as error:
        problem = f"the database {path} cannot be read ({error})"
        raise StudyError(problem, hint="give the database of a study, or the folder of one") from error


def _connected(path: Path) -> sqlite3.Connection:
    connection = _connect(path, "ro")
    try:
        connection.execute("select count(*) from sqlite_master")
    except sqlite3.OperationalError as error:
        connection.close()
        if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        # A tuner was killed in the middle of a commit: SQLite itself takes that back, for which it must write.
        return _connect(path, "rw")
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, timeout=BUSY_S)


FILE_NAME = "study.json"
MAX_BYTES = 256 * MIB

Json = dict[str, Any]


class ExportedStudy:
    """Read a study.json."""

    def __init__(self, path: Path) -> None:
        self.path = path / FILE_NAME if path.is_dir() else path
        self.name = self.path.absolute().parent.name if self.path.name == FILE_NAME else self.path.stem

    def view(self) -> StudyView:
        """Return the study as it was when it was written."""
        content = self._content()
        try:
            return self._view(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise UsageError(
                f"{self.path} must be what a study writes, but is not ({cause})", hint="give another"
            ) from error

    def _content(self) -> Json:
        try:
            with open_regular(Path(os.path.realpath(self.path))) as file:
                content = json.loads(file.read(MAX_BYTES).decode("utf-8-sig"))
        except OSError as error:
            raise UsageError(
                f"study {str(self.path)!r} cannot be read ({error.strerror})", hint="check the path"
            ) from None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or not isinstance(content.get("trials"), list):
            raise UsageError(f"{self.path} must be what a study writes, but is not", hint="give another")
        return content

    def _view(self, content: Json) -> StudyView:
        direction = Direction(content["direction"])
        header = StudyHeader(**{field.name: content[field.name] for field in fields(StudyHeader)})
        refuse_odd(header, self.name)
        trials = tuple(TrialView(trial=_trial(each)) for each in content["trials"])
        return StudyView(
            name=self.name,
            header=header,
            direction=direction,
            trials=tuple(sorted(trials, key=lambda view: view.number)),
            study=study_of(trials, direction),
            folder=self.path.absolute().parent,
            num_pruned=content.get("num_pruned"),
            num_repeated=content.get("num_repeated"),
            best_command=content.get("best_command"),
            search=StudySearch.from_json(content.get("search")),
        )


def remembered(folder: Path | None, study: Study) -> Json:
    """Return what a study's export says beyond its record: counts, and the best command if that is still the best."""
    if folder is None or not (folder / FILE_NAME).is_file():
        return {}
    try:
        content = ExportedStudy(folder)._content()
    except UsageError:
        return {}
    best = content.get("best")
    is_still = isinstance(best, dict) and study.best is not None and best.get("number") == study.best.number
    kept = {name: content[name] for name in ("num_pruned", "num_repeated") if isinstance(content.get(name), int)}
    return {**kept, **({"best_command": content.get("best_command")} if is_still else {})}


def _trial(content: Json) -> Trial:
    known = {"number", "outcome", "value", "command", "folder", "is_baseline", "why", "parameters", *TEXTS, *NUMBERS}
    outcome, value = Outcome(content["outcome"]), content["value"]
    return Trial(
        params=dict(content["parameters"]),
        outcome=outcome,
        value=finite("value", value) if outcome is Outcome.OK else None,
        number=int(finite("number", content["number"])),
        command=content["command"] or "",
        folder=Path(content["folder"]) if content["folder"] else None,
        is_baseline=bool(content.get("is_baseline")),
        why=content.get("why") or "",
        extra={name: value for name, value in content.items() if name not in known},
        **measured(content),
    )


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
            raise StudyError(f"study {self.name!r} is not one of zenithtune's, or has not begun", hint="choose another")
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
        problem = f"{what} of study {self.name!r} cannot be read ({type(error).__name__}: {error})"
        return StudyError(f"{problem}: its database was changed by something else; give another study")

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
