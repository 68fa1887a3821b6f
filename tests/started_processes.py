"""Processes that a test starts and that end with it, whatever becomes of the test."""

from __future__ import annotations

import subprocess
from typing import Any

_STARTED: list[subprocess.Popen[Any]] = []


def start_process(*args: Any, **options: Any) -> subprocess.Popen[Any]:
    """Start a process as subprocess.Popen does."""
    process = subprocess.Popen(*args, **options)
    _STARTED.append(process)
    return process


def end_started() -> None:
    """End what a failed test left running: found as garbage later, it would fail another test."""
    while _STARTED:
        process = _STARTED.pop()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()
