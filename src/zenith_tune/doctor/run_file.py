"""The files that a run leaves behind, read with a bound."""

from __future__ import annotations

import os
from pathlib import Path

from zenith_tune.errors import UsageError
from zenith_tune.regular_file import open_regular
from zenith_tune.units import MIB

MAX_BYTES = 256 * MIB


def read_bytes(path: Path) -> bytes:
    """Return what a file holds."""
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            data: bytes = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        law = f"the doctor needs a study's folder, a log or -- COMMAND, but {str(path)!r} cannot be read ({reason})"
        raise UsageError(f"{law}: check the path") from None
    if len(data) > MAX_BYTES:
        raise UsageError(f"{path} must be at most {MAX_BYTES // MIB} MiB, but is larger: give the end of it")
    return data


def positive(value: object) -> float | None:
    """Return a number above 0, or None for all else that a file may hold.

    >>> positive(3), positive(-1), positive(True), positive("3")
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < 1e30 else None
