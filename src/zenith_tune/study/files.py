"""The names of all files of a trial, in one place."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

Json = dict[str, Any]
"""A JSON object."""


def learned_folder() -> Path | None:
    """Return where studies keep what they learn of the machine: in ZENITHTUNE_HOME or the user's data folder."""
    own = os.environ.get("ZENITHTUNE_HOME")
    home = own or os.environ.get("XDG_DATA_HOME")
    try:
        folder = Path(home) if home else Path.home() / ".local" / "share"
    except RuntimeError:  # a user without a home
        return None
    return (folder if own else folder / "zenithtune") / "learned"


def path_as_written(text: str | Path) -> Path:
    """Return a path; `./~` is absolute, which would otherwise be taken for the home folder."""
    path = Path(text)
    return path.absolute() if str(path).startswith("~") and not str(text).startswith("~") else path


def plain_name(text: str) -> str:
    """Return a text as the name of a file: what others wrote is not trusted."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", text)[:100]


class TrialFolder:
    """The files of one run: its command, its log, how it ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.command = path / "command.sh"
        """The exact command, secrets masked."""
        self.trial = path / "trial.json"
        """Parameters, outcome, cause and value."""
        self.log = path / "log.txt"
        """Standard output and standard error together."""
        self.process = path / "process"
        """Which process runs it: boot id, pid and start time, written by the trial itself."""
        self.exit_code = path / "exit_code"
        """How the command exited, written by the trial itself: it outlives a killed tuner."""
        self.orders = path / "orders.json"
        """The point that its process is to measure next; empty where it is to wait for one."""
        self.measured = path / "measured"
        """Written by a process that has measured its point and waits for another."""
        self.job = path / "job.json"
        """Which job of a scheduler runs it, written as soon as it is submitted."""

    def run(self, index: int, num_runs: int) -> TrialFolder:
        """Return the folder of one of several repeats; a single run lives in the trial's own folder."""
        return self if num_runs == 1 else TrialFolder(self.path / f"run-{index}")

    def runs(self) -> list[TrialFolder]:
        """Return the folders in which something may have run."""
        return [self, *(TrialFolder(path) for path in sorted(self.path.glob("run-*")))]

    def log_aside(self, why: str) -> Path:
        """Return where the log of a run is that does not count."""
        return self.log.with_name(f"log.{why}.txt")

    def forget_run(self, why: str) -> None:
        """Put the log of a run that does not count aside, so that the next one starts clean."""
        if self.log.exists():
            self.log.replace(self.log_aside(why))
        for path in (self.process, self.exit_code, self.job, self.measured):
            path.unlink(missing_ok=True)

    def noted_duration_s(self) -> float:
        """Return how long the trial ran by what it wrote itself when it began and when it ended."""
        try:
            return max(self.exit_code.stat().st_mtime - self.process.stat().st_mtime, 0.0)
        except OSError:
            return 0.0

    def read(self, path: Path) -> str:
        """Return a file's text, or nothing if there is no such file."""
        try:
            return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        except OSError:
            return ""

    def read_json(self, path: Path) -> Json:
        """Return the JSON object that a file holds; an empty one where it holds none."""
        try:
            content = json.loads(self.read(path))
        except ValueError:
            return {}
        return content if isinstance(content, dict) else {}


def write_atomically(path: Path, text: str, *, is_private: bool = False) -> None:
    """Replace a file as a whole: a reader never sees half of it; only its owner reads a private one."""
    # Two processes, or threads, may write one file.
    draft = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")
    mode = 0o600 if is_private else file_mode(path.parent)
    try:
        draft.unlink(missing_ok=True)
        with open(draft, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def file_mode(folder: Path) -> int:
    """Return the rights of a new file: whoever may not enter its folder may not read it either."""
    return stat.S_IMODE(folder.stat().st_mode) & 0o666


def make_folder(path: Path) -> None:
    """Make a folder, and those above it, with the rights of the one that they stand in."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=stat.S_IMODE(path.parent.stat().st_mode) & 0o777, exist_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file as a whole."""
    write_atomically(path, json.dumps(content, indent=2, default=str, allow_nan=False) + "\n")


def write_output(path: Path, text: str) -> None:
    """Replace a regular file as a whole, also behind a link; write into anything else, such as a pipe or a device."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        with path.open("w", encoding="utf-8") as file:
            file.write(text)
    else:
        write_atomically(target, text)


def open_regular(path: Path, *, writable: bool = False) -> BinaryIO:
    """Open a regular file without following a link or waiting for anybody; raise OSError for anything else."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    descriptor = os.open(path, flags | (os.O_RDWR if writable else os.O_RDONLY))
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(code, "not a regular file", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return os.fdopen(descriptor, "r+b" if writable else "rb")


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return what a regular file holds, also behind a link; raise OSError for anything else, and for a larger one."""
    try:
        with open_regular(Path(os.path.realpath(path))) as file:
            data = file.read(max_bytes + 1)
    except ValueError as error:  # a path with a NUL in it
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"larger than {max_bytes / 2**20:g} MiB", str(path))
    return data
