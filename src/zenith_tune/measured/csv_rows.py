"""Rows of CSV files as people leave them: with a byte-order mark or without, columns missing, or no CSV at all."""

from __future__ import annotations

import csv
import io
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.regular_file import open_regular
from zenith_tune.units import MIB

MAX_BYTES = 256 * MIB
"""A million rows; what is larger is no table of runs."""


def csv_files(place: Path) -> list[Path]:
    """Return the file itself, or the CSV files of a folder, its `published` and its `h200`."""
    try:
        if not place.is_dir():
            return [place]
        folders = (place, place / "published", place / "h200")
        return [path for at in folders for path in sorted(at.glob("*.csv")) if not path.name.startswith("_")]
    except (OSError, ValueError) as error:
        raise UsageError(f"measured runs {str(place)!r} cannot be looked up ({error}): check the path") from None


def csv_rows(path: Path) -> Iterator[Mapping[str, str]]:
    """Yield the rows of one file by column; a column that is not there is blank."""
    rows = csv.DictReader(io.StringIO(_text(path), newline=""))
    try:
        for row in rows:
            yield defaultdict(str, {name: value or "" for name, value in row.items() if name is not None})
    except csv.Error as error:
        raise UsageError(f"{path}, line {rows.line_num} must be CSV, but {error}: mend or remove it") from None


def _text(path: Path) -> str:
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"measured runs {str(path)!r} cannot be read ({reason}): check the path") from None
    if len(data) > MAX_BYTES:
        law = f"a file of measured runs must be of at most {MAX_BYTES // MIB} MiB"
        raise UsageError(f"{law}, but {path} is larger: split it")
    return data.decode("utf-8-sig", errors="replace")
