"""Processes that a test starts, which end with it, whatever becomes of the test; and which of them still run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.warm_process import WarmCommand, zenithtune_words
from zenith_tune.runners.launch.process_tree import MARK

_PATIENCE_S = 500.0
_STARTED: list[subprocess.Popen[Any] | WarmCommand] = []


def start_process(*args: Any, **options: Any) -> subprocess.Popen[Any]:
    """Start a process as subprocess.Popen does."""
    process = subprocess.Popen(*args, **options)
    _STARTED.append(process)
    return process


def start_forked(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> WarmCommand:
    """Start `zenithtune ARGUMENTS` in a process of its own, without the seconds that a new interpreter takes."""
    process = WarmCommand(zenithtune_words(arguments), folder, environment)
    _STARTED.append(process)
    return process


def end_started() -> None:
    """End what a failed test left running: found as garbage later, it would fail another test."""
    while _STARTED:
        process = _STARTED.pop()
        process.kill()
        process.wait()
        if isinstance(process, subprocess.Popen):
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and waits for its parent does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def marked_processes(folder: Path) -> list[int]:
    """Return the living processes of every trial whose files are in a folder or below it."""
    mark = f"{MARK}={folder}/".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            is_marked = any((each + b"/").startswith(mark) for each in (place / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if is_marked and is_alive(int(place.name)):
            found.append(int(place.name))
    return found


def wait_until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, for as long as a busy machine may need."""
    deadline = time.monotonic() + _PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.02)
