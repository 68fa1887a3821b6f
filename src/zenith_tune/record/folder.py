"""Where a study keeps its files."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from zenith_tune.errors import StudyError, UsageError
from zenith_tune.study.files import TrialFolder

DEFAULT_OUTPUT_DIR = Path("zenithtune-out")
DATABASE_NAME = "studies.db"


class StudyFolder:
    """Hold the paths of one study: OUTPUT_DIR/STUDY/trials/NNNN beside the database of all studies."""

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
        self.best_command = self.path / "best_command.sh"
        self.environment = self.path / "environment.json"
        self.control = self.path / "control.json"
        """What was asked of the study while it runs."""

    def create(self) -> None:
        """Make the folder, or say in one line why it cannot be made."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            probe = self.path / f".writable-{os.getpid()}-{threading.get_ident()}"
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise UsageError(
                f"the output folder {self.path} cannot be written ({error.strerror}): choose another --output-dir"
            ) from error

    def refuse_foreign(self, database: str) -> None:
        """Refuse a folder with the files of a study that `database` does not have: its logs would be read as ours."""
        if self.json.exists() or (self.path / "trials").exists():
            raise StudyError(
                f"folder {self.path} holds a study that is not in {database}: give the --db that has it, choose "
                "another --study-name or --output-dir, or move the folder away"
            )

    def trial(self, number: int) -> TrialFolder:
        """Return the folder of trial `number`."""
        return TrialFolder(self.path / "trials" / f"{number:04d}")
