"""The processes of this machine that belong to a trial."""

from __future__ import annotations

from pathlib import Path

from zenith_tune.runners.launch.process_tree import MARK


def marked(path: Path) -> list[int]:
    """Return the processes that carry the mark of the trial in `path`."""
    mark = f"{MARK}={path}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue
    return found
