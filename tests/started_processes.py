"""Processes that a test starts and that end with it, whatever becomes of the test."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.warm_process import WarmCommand

_STARTED: list[subprocess.Popen[Any] | WarmCommand] = []


def start_process(*args: Any, **options: Any) -> subprocess.Popen[Any]:
    """Start a process as subprocess.Popen does."""
    process = subprocess.Popen(*args, **options)
    _STARTED.append(process)
    return process


def start_forked(arguments: Sequence[str], folder: Path, environment: Mapping[str, str]) -> WarmCommand:
    """Start `zenithtune ARGUMENTS` in a process of its own, without the seconds that a new interpreter takes."""
    process = WarmCommand(arguments, folder, environment)
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
