"""Reads a study by its database, again and again and quickly, or by its study.json."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.record.record import HEADER_KEY
from zenith_tune.record.search import SEARCH_KEY, StudySearch
from zenith_tune.record.server.url import database_path, shown
from zenith_tune.record.storage import clear_errors, open_for_reading, opened_storage
from zenith_tune.record.stored_trial import TWIN_OF, TrialFolders, exported_view, refuse_unreadable, trial_view
from zenith_tune.record.view import StudyHeader, StudyView, TrialView, study_of
from zenith_tune.study.files import Json, open_regular
from zenith_tune.study.optuna_types import quiet_optuna
from zenith_tune.study.parameters import Direction, Value
from zenith_tune.study.study import Study
from zenith_tune.units import MIB

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial, TrialState

FILE_NAME = "study.json"
MAX_BYTES = 256 * MIB


class ExportedStudy:
    """The study of a study.json."""

    def __init__(self, path: Path) -> None:
        self.path = path / FILE_NAME if path.is_dir() else path
        self.name = self.path.absolute().parent.name if self.path.name == FILE_NAME else self.path.stem

    def view(self) -> StudyView:
        content = self.content()
        with refuse_unreadable(str(self.path)):
            return self._view(content)

    def content(self) -> Json:
        try:
            with open_regular(Path(os.path.realpath(self.path))) as file:
                text = file.read(MAX_BYTES).decode("utf-8-sig")
            content = json.loads(text)
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
        header = {field.name: content[field.name] for field in fields(StudyHeader) if field.name in content}
        if not isinstance(header.get("args", {}), dict):
            raise TypeError(f"args is {header['args']!r}")
        trials = tuple(exported_view(each, content["trials"]) for each in content["trials"])
        search = StudySearch.from_json(content.get("search"))
        return StudyView(
            name=self.name,
            header=StudyHeader.from_stored(header, self.name),
            direction=direction,
            trials=tuple(sorted(trials, key=lambda view: view.number)),
            study=study_of(trials, direction, search),
            folder=self.path.absolute().parent,
            num_pruned=content.get("num_pruned"),
            num_repeated=content.get("num_repeated"),
            best_command=content.get("best_command"),
            search=search,
        )


def remembered(folder: Path | None, study: Study) -> Json:
    """Return what a study's export says beyond its record: counts, and the best command if that is still the best."""
    if folder is None or not (folder / FILE_NAME).is_file():
        return {}
    try:
        content = ExportedStudy(folder).content()
    except UsageError:
        return {}
    best = content.get("best")
    is_still = isinstance(best, dict) and study.best is not None and best.get("number") == study.number_of(study.best)
    kept = {name: content[name] for name in ("num_pruned", "num_repeated") if isinstance(content.get(name), int)}
    return {**kept, **({"best_command": content.get("best_command")} if is_still else {})}


def study_names(url: str) -> list[str]:
    """Return the names of all studies of a database, those begun last first."""
    storage = open_for_reading(url)
    with clear_errors(url):
        return [study.study_name for study in reversed(storage.get_all_studies())]


def recorded_choices(url: str, name: str) -> dict[str, tuple[Value, ...]]:
    """Return what every trial of a study chose from, by parameter; nothing of one that is not there or has no trials.

    Parameters that only some trials have are no part of the search space.
    """
    if (path := database_path(url)) is not None and not path.is_file():
        return {}
    with (
        clear_errors(url),
        opened_storage(url) as storage,  # a server may be starting, and have no tables yet
        refuse_unreadable(f"the trials of study {name!r}"),
        quiet_optuna(logging.ERROR),
    ):
        is_there = any(study.study_name == name for study in storage.get_all_studies())
        trials = storage.get_all_trials(storage.get_study_id_from_name(name), deepcopy=False) if is_there else []
    points = [trial.distributions for trial in trials if trial.distributions]
    return {
        name: tuple(kind.choices)
        for name, kind in (points[0] if points else {}).items()
        if hasattr(kind, "choices") and all(name in point for point in points)
    }


def recorded_evaluator(url: str, name: str) -> str:
    """Return what the record of a study calls its evaluator; nothing where there is no study yet."""
    if (path := database_path(url)) is not None and not path.is_file():
        return ""
    with clear_errors(url), opened_storage(url) as storage, quiet_optuna(logging.ERROR):
        known = {study.study_name: study.user_attrs.get(HEADER_KEY) for study in storage.get_all_studies()}
    header = known.get(name)
    return str(header.get("evaluator", "")) if isinstance(header, dict) else ""


class StudyReader:
    """One study of a database; reading holds neither the study's lock nor its database."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self._database = database_path(url)
        self._opened: tuple[int, optuna.Study] | None = None
        """The study with what Optuna remembers of it, and the file that it was read from."""
        self._known: dict[int, tuple[TrialState, TrialView]] = {}
        self._folders = TrialFolders(self._database)

    def view(self) -> StudyView:
        """Return the study as it stands; only trials that changed since the last look are read."""
        with clear_errors(self.url), refuse_unreadable(f"study {self.name!r}"):
            record = self._study()
            attributes, stored = record.user_attrs, record.get_trials(deepcopy=False)
            direction = Direction[record.direction.name]
        header = StudyHeader.from_stored(attributes.get(HEADER_KEY), self.name)
        trials = tuple(self._view(frozen, stored) for frozen in stored if TWIN_OF not in frozen.user_attrs)
        search = StudySearch.from_json(attributes.get(SEARCH_KEY))
        study = study_of(trials, direction, search)
        # A study that is resumed elsewhere writes its files there.
        folders = [view.trial.folder for view in trials if view.trial.folder is not None]
        folder = folders[-1].parent.parent if folders else None
        kept = {} if any(view.is_running for view in trials) else remembered(folder, study)
        fastest = study.fastest
        own = None if fastest is None else header.command if fastest.is_baseline else fastest.command
        return StudyView(
            name=self.name,
            header=header,
            direction=direction,
            trials=trials,
            study=study,
            folder=folder,
            database=str(self._database or shown(self.url)),
            num_pruned=kept.get("num_pruned"),
            num_repeated=kept.get("num_repeated"),
            best_command=kept.get("best_command") or own,
            search=search,
        )

    def _study(self) -> optuna.Study:
        """Return the study, which reads an ended trial only once; one that was replaced is read again."""
        file = 0 if self._database is None or not self._database.is_file() else self._database.stat().st_ino
        if self._opened is None or self._opened[0] != file:
            self._opened, self._known = (file, self._load()), {}
        return self._opened[1]

    def _load(self) -> optuna.Study:
        storage = open_for_reading(self.url)
        import optuna

        try:
            return optuna.load_study(study_name=self.name, storage=storage)
        except KeyError:
            raise UnknownNameError("study", self.name, study_names(self.url)) from None

    def _view(self, frozen: FrozenTrial, stored: list[FrozenTrial]) -> TrialView:
        state, known = self._known.get(frozen.number, (None, None))
        if known is None or state is not frozen.state:
            with refuse_unreadable(f"trial {frozen.number} of study {self.name!r}"):
                known = trial_view(frozen, self._folders, stored)
            self._known[frozen.number] = (frozen.state, known)
        return known
