"""Where a study lives: its folder, its database and its name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from zenith_tune.record.storage import check_database_file, database_path, database_url
from zenith_tune.record.study_folder import DATABASE_NAME, DEFAULT_OUTPUT_DIR, StudyFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlace:
    """Hold where a study lives, and whether it may be there already."""

    folder: StudyFolder
    database_url: str
    study_name: str
    resume: bool
    retry_failed: bool = False

    @classmethod
    def find(
        cls, output_dir: str | Path | None, study_name: str | None, db: str | Path | None, *, resume: bool, stem: str
    ) -> StudyPlace:
        """Fill in what the user left open; the output folder of a database that is given is the database's own."""
        file = database_path(database_url(db)) if db else None
        if file is not None:
            check_database_file(file)
        root = Path(output_dir) if output_dir else (file.parent if file else DEFAULT_OUTPUT_DIR)
        name = study_name or (_latest_study(root) if resume else None) or _new_name(root, stem)
        folder = StudyFolder(root, name)
        url = database_url(file.absolute() if file else db or folder.output_dir / DATABASE_NAME)
        return cls(folder=folder, database_url=url, study_name=name, resume=resume)


def _new_name(root: Path, stem: str) -> str:
    stem = name = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    count = 1
    while (root / name).exists():
        count += 1
        name = f"{stem}-{count}"
    return name


def _latest_study(root: Path) -> str | None:
    """Return the study that ran last in `root`, for `--resume` without a name."""
    studies = [path for path in root.glob("*/trials") if path.is_dir()]
    return max(studies, key=lambda path: path.stat().st_mtime).parent.name if studies else None
