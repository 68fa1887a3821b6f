"""The files that a run leaves in the working folder, next to the user's own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

MOST_FILES, MOST_S = 20_000, 1.0
"""The most files that are looked at, and the longest that this may take."""
MOST_NAMED = 4
_CACHES = ("__pycache__", "node_modules")

State = Mapping[str, tuple[int, int]]
"""Size and time of each file, by its path below the folder."""


def state_of(folder: Path, besides: Collection[Path] = ()) -> State | None:
    """Return the files of a folder, without hidden ones and caches; None where there are too many to look at."""
    until, found = time.monotonic() + MOST_S, dict[str, tuple[int, int]]()
    left_out, folders = {str(path) for path in besides}, [str(folder)]
    while folders:
        try:
            entries = list(os.scandir(folders.pop()))
        except OSError:  # another program has removed it, or keeps it to itself
            continue
        for entry in entries:
            if entry.name.startswith(".") or entry.name in _CACHES or entry.path in left_out:
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                about = entry.stat(follow_symlinks=False)
                found[os.path.relpath(entry.path, folder)] = about.st_size, about.st_mtime_ns
        if len(found) > MOST_FILES or time.monotonic() > until:
            return None
    return found


def without_open(state: State, folder: Path) -> State:
    """Return the files that no process holds open: a run that has ended writes to no other."""
    held: set[str] = set()
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            held.update(str(each.readlink()) for each in (process / "fd").iterdir())
    return {name: about for name, about in state.items() if str(folder / name) not in held}


def written_files(before: State, after: State) -> str:
    """Name what was written between two states, a folder for all that is in it; nothing where nothing was.

    >>> written_files({"a.pt": (1, 1)}, {"a.pt": (1, 2), "runs/x/1": (1, 1), "runs/y": (1, 1), "b.csv": (2, 1)})
    'a.pt (overwritten), b.csv and runs/ (2 files)'
    """
    written: dict[str, list[str]] = {}
    for name in sorted(name for name, state in after.items() if before.get(name) != state):
        top, _, below = name.partition("/")
        written.setdefault(f"{top}/" if below else top, []).append(name)
    named = []
    for top, names in written.items():
        is_old = any(name in before for name in names)
        about = [f"{len(names)} files"] * (len(names) > 1) + ["overwritten"] * is_old
        shown = names[0] if len(names) == 1 else top
        named.append(f"{shown} ({', '.join(about)})" if about else shown)
    if len(named) > MOST_NAMED:
        named = [*named[: MOST_NAMED - 1], f"{len(named) - MOST_NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(named[:-1]), *named[-1:]]))
