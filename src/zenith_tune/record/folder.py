"""Where a study keeps its files."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from pathlib import Path
from typing import IO

from zenith_tune.errors import StudyError, UsageError
from zenith_tune.record.storage import lock_if_possible, open_beside
from zenith_tune.study.faults import is_system_fault
from zenith_tune.study.files import TrialFolder

DEFAULT_OUTPUT_DIR = Path("zenithtune-out")
DATABASE_NAME, RECORD_NAME = "studies.db", "record.json"
BEST_COMMAND = "best_command.sh"
ABOUT_NAME = "bundle.json"
"""What a study that came by `zenithtune import` has in place of its record."""


class StudyFolder:
    """The paths of one study: OUTPUT_DIR/STUDY/trials/NNNN, next to the database of all studies."""

    def __init__(self, output_dir: Path, study_name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", study_name) or study_name == DATABASE_NAME:
            raise UsageError(
                f"a study name is up to 100 letters, digits, '.', '_' and '-', and not {DATABASE_NAME!r}, but got "
                f"{study_name!r}: choose another --study-name"
            )
        # A trial runs in the user's own folder and may change it: every path handed to it is absolute.
        self.output_dir = output_dir.absolute()
        self.path = self.output_dir / study_name
        self.csv = self.path / "trials.csv"
        self.json = self.path / "study.json"
        self.best_command = self.path / BEST_COMMAND
        self.best_diff = self.path / "best.diff"
        """What `patch` takes to make the user's own script the best one, where a script was opened."""
        self.page = self.path / "report.html"
        self.environment = self.path / "environment.json"
        self.record = self.path / RECORD_NAME
        """The study without its trials, to rebuild a lost database from this and their files."""
        self.control = self.path / "control.json"
        """What was asked of the study while it runs."""

    def make(self) -> None:
        """Make the folder where it is missing; commands, logs and environments are private."""
        self.output_dir.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.output_dir, self.path):
            folder.mkdir(mode=0o700, exist_ok=True)

    def create(self) -> None:
        """Make the folder, or say in one line why it cannot be made."""
        try:
            self.make()
            probe = self.path / f".writable-{os.getpid()}-{threading.get_ident()}"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            if is_system_fault(error):
                raise
            raise UsageError(
                f"the output folder {self.path} cannot be written ({error.strerror})",
                hint="choose another --output-dir",
            ) from error

    def refuse_foreign(self, database: str) -> None:
        """Refuse a folder with the files of a study that `database` does not have: its logs would be read as ours."""
        if self.json.exists() or (self.path / "trials").exists():
            raise StudyError(
                f"folder {self.path} holds a study that is not in {database}",
                hint="give the --db that has it, rebuild a lost database by zenithtune recover, choose another "
                "--study-name or --output-dir, or move the folder away",
            )

    def trial(self, number: int) -> TrialFolder:
        """Return the folder of trial `number`."""
        return TrialFolder(trial_folder(self.path, number))


def trial_folder(study_folder: Path, number: int) -> Path:
    """Return where a study keeps the files of trial `number`."""
    return study_folder / "trials" / f"{number:04d}"


def held_by(study_name: str, pid: int | str) -> StudyError:
    """Say that another process tunes a study."""
    return StudyError(
        f"study {study_name!r} is being tuned by process {pid}",
        hint="wait for it, end it, choose another --study-name, or keep the study on a server, where several tuners "
        "share one, by --db postgresql://...",
    )


class StudyLock:
    """The lock of a study for one tuner; the kernel releases it when the tuner dies, however it dies."""

    def __init__(self, database: Path, study_name: str) -> None:
        # Next to the database, not in the output folder: two tuners may share the one and not the other.
        self._database = database.resolve()
        self._study_name = study_name
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock, or name the process that holds it."""
        file = open_beside(self._database, f".{self._database.name}.{self._study_name}.lock")
        try:
            lock_if_possible(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            raise held_by(self._study_name, holder) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        self._file = file

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
