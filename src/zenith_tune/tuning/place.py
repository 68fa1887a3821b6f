"""Where a study lives: its folder, its database and its name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.record.folder import DATABASE_NAME, DEFAULT_OUTPUT_DIR, StudyFolder
from zenith_tune.record.server.url import database_path, driver_url, is_server, refuse_misspelt, shown
from zenith_tune.record.storage import check_database_file, database_url, expanded
from zenith_tune.tuning.options import TuneOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlace:
    """Where a study lives."""

    folder: StudyFolder
    database_url: str
    study_name: str

    @classmethod
    def find(cls, options: TuneOptions, *, stem: str) -> StudyPlace:
        """Fill in what the user left open; the output folder of a database file that is given is the file's own."""
        output_dir, db = options.output_dir, options.db
        if db:
            refuse_misspelt(str(db))
        server = str(db) if db and is_server(str(db)) else None
        if server is not None:
            driver_url(server)  # a driver that is missing is reported now
            check_text(server, "--db")
        file = _database_file(db) if db and server is None else None
        root = expanded(output_dir) if output_dir else (file.parent if file else DEFAULT_OUTPUT_DIR)
        name = options.study_name or (_latest_study(root) if options.resume else None) or name_of_now(root, stem)
        folder = StudyFolder(root, name)
        check_text(str(folder.path), "the output folder")
        if server is not None:
            return cls(folder=folder, database_url=server, study_name=name)
        path = file.absolute() if file else folder.output_dir / DATABASE_NAME
        # The output folder is made where it is missing, but not for a database alone.
        will_be_made = path.parent == folder.output_dir and (output_dir or not db)
        if path.parent.is_dir() or not will_be_made:
            check_database_file(path)
        return cls(folder=folder, database_url=database_url(path), study_name=name)


def _database_file(db: str | Path) -> Path:
    file = database_path(str(db)) if "://" in str(db) else expanded(db)
    if file is None:
        raise UsageError(f"--db must be an SQLite file or a postgresql:// address, but got {shown(str(db))}")
    if str(file) in ("", ".", ":memory:"):
        raise UsageError("a study must outlive its tuner, but this database is in memory", hint="give --db a file")
    return file


def name_of_now(root: Path, stem: str) -> str:
    """Return a name for now, to the millisecond, because two tuners may start in one second."""
    now = time.time()
    while True:
        name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{int(now * 1000) % 1000:03d}"
        if not (root / name).exists():
            return name
        now += 0.001


def check_text(text: str, what: str) -> None:
    """Refuse what no file and no database can hold."""
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise UsageError(f"{what} must be valid text without NUL, but got {text!r}")


def _latest_study(root: Path) -> str | None:
    """Return the study that ran last in `root`, for `--resume` without a name."""
    studies = [path for path in root.glob("*/trials") if path.is_dir()]
    return max(studies, key=lambda path: path.stat().st_mtime).parent.name if studies else None
