"""The files that a run leaves in the working folder, next to the user's own, which are put back."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from zenith_tune.units import GIB, MIB

MOST_FILES, MOST_S = 20_000, 1.0
"""The most files that are looked at, and the longest that this may take."""
MOST_NAMED = 4
_CACHES = ("__pycache__", "node_modules")

SOURCES = (".py", ".sh", ".yaml", ".yml", ".toml", ".cfg")
"""Files that a command reads, and its user may edit meanwhile."""
CHECKPOINTS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")
MOST_OF_CHECKPOINT, MOST_OF_OTHERS = 2 * GIB, 64 * MIB
"""The largest file that is kept."""

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


class OwnFiles:
    """The user's files that runs may overwrite: those that the command, its script or its program names.

    They are copied before the first run and put back when the study ends; one that was killed puts them back when it
    is resumed.
    """

    def __init__(self, working: Path, study: Path) -> None:
        self._working, self._kept, self._list = working, study / "own-files", study / "own-files.txt"

    def keep(self, state: State, text: str) -> None:
        """Copy the files of a state that a text names, and the programs and scripts that it names."""
        if self._kept.exists():  # by a study that was killed: what is in their place now is none of the user's
            return
        named = set(re.findall(r"[\w.-]+", text))
        for name in state:
            if name.endswith((".py", ".sh")) and Path(name).name in named and state[name][0] < MIB:
                with contextlib.suppress(OSError, ValueError):
                    named.update(re.findall(r"[\w.-]+", (self._working / name).read_text()))
        for name, (size, _) in state.items():
            most = MOST_OF_CHECKPOINT if name.endswith(CHECKPOINTS) else MOST_OF_OTHERS
            if Path(name).name in named and not name.endswith(SOURCES) and size <= most:
                self._copy(self._working / name, self._kept / name)

    def keep_again(self) -> None:
        """Copy those that an earlier run of the study has put back, which may be others by now."""
        if self._list.exists() and not self._kept.exists():
            for name in self._list.read_text().splitlines():
                self._copy(self._working / name, self._kept / name)

    def written(self) -> list[str]:
        """Return those that were overwritten, and forget the others."""
        for name in filter(self._is_as_kept, list(self._names())):
            (self._kept / name).unlink()
        return list(self._names())

    def put_back(self) -> list[str]:
        """Put back what was overwritten, and return the names."""
        names = [name for name in self._names() if not self._is_as_kept(name)]
        for name in names:
            self._copy(self._kept / name, self._working / name)
        if self._kept.exists() and all(map(self._is_as_kept, names)):
            self._list.write_text("".join(f"{name}\n" for name in self._names()))
            shutil.rmtree(self._kept)
        return names

    def _names(self) -> Iterator[str]:
        yield from sorted(str(path.relative_to(self._kept)) for path in self._kept.rglob("*") if path.is_file())

    def _is_as_kept(self, name: str) -> bool:
        with contextlib.suppress(OSError):
            here, kept = (self._working / name).stat(), (self._kept / name).stat()
            return (here.st_size, here.st_mtime_ns) == (kept.st_size, kept.st_mtime_ns)
        return False

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        part = target.with_name(f".{target.name}.part")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, part)
            part.replace(target)
        except OSError:  # a full disk keeps no half of a file
            with contextlib.suppress(OSError):
                part.unlink()
