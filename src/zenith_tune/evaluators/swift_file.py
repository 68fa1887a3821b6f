"""The logging.jsonl that ms-swift writes: it has the lines where standard output shows none of them.

Only the last rank prints, which on several nodes is one that the log is not of, and a script may keep its output to
itself. The file lies in the output folder or, as a rule, in a folder below it for each run, such as
`v0-20260822-152222`. One that was last written before the trial began is another run's.
"""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zenith_tune.errors import CommandError
from zenith_tune.shell import CommandLine
from zenith_tune.study.trial_log import TrialLog

NAME = "logging.jsonl"
OUTPUT_OPTIONS = ("--output-dir", "--save")
"""How ms-swift 4 and 3 spell the folder."""

_SAID = re.compile(r"(?:logging_path|logging file will be saved in): (\S[^\r\n]{0,1000}?logging\.jsonl)")
_VERSION = re.compile(r"v\d{1,6}-")
_MOVES = re.compile(r"(?:^|[\s;&|(])(?:cd|pushd)\s")
_MAX_ENTRIES = 10_000


def logging_file(log: str, metadata: Mapping[str, Any]) -> str:
    """Return the text of the newest file that the trial wrote, or nothing where there is none.

    `metadata` must say how long the trial has run by now; without it no file can be told from an older one.
    """
    command, duration_s = metadata.get("command"), metadata.get("duration")
    if not isinstance(command, str) or not isinstance(duration_s, int | float):
        return ""
    began = time.time() - duration_s
    written = [(at, path) for path in _places(log, command) if (at := _written_at(path)) >= began]
    return TrialLog(max(written)[1]).text() if written else ""


def _places(log: str, command: str) -> Iterator[Path]:
    """Yield where the file may lie: where the log says, or else where the command puts its output."""
    said = [match[1] for match in _SAID.finditer(log)]
    if said:
        yield from _reachable(said[-1], command)
        return
    for folder in _reachable(_output_folder(command), command):
        yield folder / NAME
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in itertools.islice(entries, _MAX_ENTRIES)]
        except OSError:
            continue
        yield from (folder / name / NAME for name in names if _VERSION.match(name))


def _output_folder(command: str) -> str | None:
    try:
        line = CommandLine(command)
        return next((value for option in OUTPUT_OPTIONS if (value := line.get(option))), None)
    except CommandError:
        return None


def _reachable(text: str | None, command: str) -> Iterator[Path]:
    """Yield the path, unless only the trial's shell knows where it leads."""
    if text is None or "$" in text or "`" in text or "\0" in text:
        return
    try:
        path = Path(text).expanduser()
    except RuntimeError:  # nobody's home
        return
    if path.is_absolute() or not _MOVES.search(command):
        yield path


def _written_at(path: Path) -> float:
    """Return when the file was last written; never, if it is not there."""
    try:
        return path.stat(follow_symlinks=False).st_mtime
    except OSError:
        return float("-inf")
