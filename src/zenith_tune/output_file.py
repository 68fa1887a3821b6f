"""Writes what a user asked for, where he asked for it."""

from __future__ import annotations

from pathlib import Path

from zenith_tune.study.files import write_atomically


def write_output(path: Path, text: str) -> None:
    """Replace a regular file as a whole, also behind a link; write into anything else, such as a pipe or a device."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
    else:
        write_atomically(target, text)
