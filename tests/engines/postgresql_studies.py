"""Tuners of studies on a PostgreSQL server: in processes of their own, or as parts of this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy

from tests.conftest import ROOT
from tests.started_processes import start_process
from zenith_tune.record.folder import StudyFolder
from zenith_tune.record.record import StudyRecord
from zenith_tune.record.server.other_tuners import OtherTuners, Rhythm
from zenith_tune.record.server.url import driver_url
from zenith_tune.record.view import StudyHeader
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Trial

TRAINER = """#!/bin/sh
echo "$@" >> "${0%/*}/ran"
echo "value: $((${2:-0} * 7 % 97))"
"""
TOY_TUNER = """
import sys
from pathlib import Path
from tests.study_tools import tune
name, folder, url, command = sys.argv[1:]
tune(Path(folder), command, db_path=url, study_name=name, resume=True, baseline=False).optimize()
"""
HEADER = StudyHeader(preset="toy", args={}, command="train", evaluator="regex")


def eventually(condition: Callable[[], bool], timeout_s: float = 500) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class ManyTuners:
    """Run `zenithtune optimize` several times on one study, with a trainer that notes each of its runs."""

    def __init__(self, folder: Path, url: str, count: int, *options: str) -> None:
        self.folder, self.count = folder, count
        self.ran = folder / "ran"
        trainer = folder / "train.sh"
        trainer.write_text(TRAINER)
        trainer.chmod(0o755)
        study = ["--db", url, "--study-name", "s", "--resume"]
        space = ["--preset", "last-word", "--args", "n=1000"]
        own = ["--", str(trainer), "--steps"]
        program = [sys.executable, "-m", "tests.engines.forked_tuners", str(folder), str(count)]
        environment = {**os.environ, "PYTHONPATH": _with_root()}
        # A group of its own, so that all of its tuners can be ended with it.
        self._tuners = start_process(
            [*program, "optimize", "--json", *study, *space, *options, *own],
            cwd=folder,
            env=environment,
            start_new_session=True,
        )

    def wait(self, timeout_s: float = 500) -> list[int]:
        self._tuners.wait(timeout=timeout_s)
        return [int(line) for line in lines_of(self.folder / "exit_codes")]

    def events(self, name: str) -> list[list[dict[str, Any]]]:
        """Return the events of a name that each tuner reported."""
        reported = [map(json.loads, lines_of(self.folder / f"out{index}")) for index in range(self.count)]
        return [[event for event in events if event["event"] == name] for events in reported]

    def errors(self) -> str:
        return "\n".join((self.folder / f"err{index}").read_text() for index in range(self.count))

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._tuners.pid, signal.SIGKILL)
        self._tuners.wait()


def _with_root() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


def hanging_at_first(folder: Path) -> str:
    """Return a command that notes its process, and hangs at x=1 until somebody makes the file `go`."""
    hang = f"[ {{x}} != 1 ] || [ -e {folder}/go ] || sleep 600"
    return f"sh -c 'echo $$ >> {folder}/ran-{{x}}; {hang}; echo value: {{x}}'"


def start_tuner(name: str, folder: Path, url: str, command: str) -> subprocess.Popen[str]:
    """Tune a command by the toy preset in a process of its own; whoever starts it ends it."""
    program = [sys.executable, "-c", TOY_TUNER, name, str(folder), url, command]
    return start_process(program, env={**os.environ, "PYTHONPATH": _with_root()}, stderr=subprocess.DEVNULL, text=True)


def rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    engine = sqlalchemy.create_engine(driver_url(url), poolclass=sqlalchemy.pool.NullPool)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sqlalchemy.text(sql))]


@contextmanager
def opened(url: str, folder: Path, name: str, header: StudyHeader = HEADER) -> Iterator[StudyRecord]:
    """Open a study as one of its tuners, making it where it is missing."""
    record = StudyRecord(url, name, StudyFolder(folder, name))
    try:
        with record.opening():
            if record.exists():
                record.reopen(header)
            else:
                record.create(header, Direction.MAXIMIZE)
        yield record
    finally:
        record.close()


@contextmanager
def joined(record: StudyRecord, rhythm: Rhythm, recover: Callable[[Trial], bool]) -> Iterator[OtherTuners]:
    """Be one of a study's tuners, for as long as the block runs."""
    others = OtherTuners(record, take_in=lambda trial: None, recover=recover, check=lambda: None, rhythm=rhythm)
    try:
        others.begin([])
        yield others
    finally:
        others.close()
