"""Finds the study that a user names: by its name in a database, by its folder, or by its study.json."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from zenith_tune.errors import StudyError, UnknownNameError
from zenith_tune.record.folder import DATABASE_NAME, DEFAULT_OUTPUT_DIR
from zenith_tune.record.reader import FILE_NAME, ExportedStudy, StudyReader, study_names
from zenith_tune.record.storage import database_url, expanded
from zenith_tune.record.view import StudyView


class StudySource(Protocol):
    """Whatever a study can be read from, again and again."""

    name: str

    def view(self) -> StudyView:
        """Return the study as it stands."""


def find_study(text: str | None, *, db: str | None = None, output_dir: Path | None = None) -> StudySource:
    """Return the study that `text` names: an unknown one is refused with a list of those that are there.

    Without a name, and of a folder that holds several, it is the one begun last.
    """
    if text is None:
        return studies_in(output_dir, db=db)[0]
    if db is not None:
        if text not in (known := study_names(database_url(db))):
            raise UnknownNameError("study", text, known)
        return StudyReader(database_url(db), text)
    root = expanded(output_dir) if output_dir else DEFAULT_OUTPUT_DIR
    database = root / DATABASE_NAME
    known = _names(database)
    if text in known:
        return StudyReader(database_url(database.absolute()), text)
    path = expanded(text)
    if path.is_dir():
        return _in_folder(path.absolute())
    if path.is_file():
        return ExportedStudy(path)
    if (root / text / FILE_NAME).is_file():
        return ExportedStudy(root / text)
    if not database.is_file():
        problem = f"there is neither a study, a folder nor a file {text!r}, and no {database}"
        raise StudyError(problem, hint="give --output-dir or --db of the study, or its folder")
    raise UnknownNameError("study", text, known)


def studies_in(folder: Path | None = None, *, db: str | None = None) -> list[StudySource]:
    """Return all studies of an output folder or a database, those begun last first; those only in folders come last."""
    root = expanded(folder) if folder else DEFAULT_OUTPUT_DIR
    database = root / DATABASE_NAME
    url = database_url(db) if db is not None else database_url(database.absolute())
    names = study_names(url) if db is not None else _names(database)
    exported = [] if db is not None else sorted(root.glob(f"*/{FILE_NAME}"))
    found: list[StudySource] = [StudyReader(url, name) for name in names]
    found += [ExportedStudy(path.parent) for path in exported if path.parent.name not in names]
    if not found:
        hint = "give the --output-dir or the --db that zenithtune optimize wrote to"
        raise StudyError(f"{db or root} holds no study", hint=hint)
    return found


def _in_folder(folder: Path) -> StudySource:
    database = folder.parent / DATABASE_NAME
    if folder.name in _names(database):
        return StudyReader(database_url(database), folder.name)
    if (folder / FILE_NAME).is_file():
        return ExportedStudy(folder)
    if (folder / DATABASE_NAME).is_file():
        return studies_in(folder)[0]
    raise StudyError(f"{folder} is no folder of a study, as it has no {FILE_NAME}", hint="give another")


def _names(database: Path) -> list[str]:
    return study_names(database_url(database.absolute())) if database.is_file() else []
