"""A first look into a database, without loading Optuna: most mistakes about studies show there."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

_QUERY = """
select value_json from studies left join study_user_attributes
on studies.study_id = study_user_attributes.study_id and key = ? where study_name = ?
"""


def peek_header(database: Path, study_name: str, key: str) -> tuple[bool, dict[str, Any] | None]:
    """Return whether the study is there, and its header; where nothing can be told, that it is not.

    Only a first look: what is right or wrong is judged again when the study is opened.
    """
    if not database.is_file():
        return False, None
    with contextlib.suppress(sqlite3.Error, ValueError, TypeError):
        connection = sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1)
        with contextlib.closing(connection):
            row = connection.execute(_QUERY, (key, study_name)).fetchone()
        if row is not None:
            header = json.loads(row[0]) if row[0] else None
            return True, header if isinstance(header, dict) else None
    return False, None
