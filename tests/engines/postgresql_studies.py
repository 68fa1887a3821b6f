"""Tuners of studies on a PostgreSQL server: in processes of their own, or as parts of this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy

from tests.conftest import ROOT
from zenith_tune.direction import Direction
from zenith_tune.record.other_tuners import OtherTuners, Rhythm
from zenith_tune.record.server_url import driver_url
from zenith_tune.record.study_folder import StudyFolder
from zenith_tune.record.study_record import StudyHeader, StudyRecord
from zenith_tune.trial import Trial

TRAINER = """#!/bin/sh
echo "$@" >> "${0%/*}/ran"
echo "value: $((($2 * 7 + ${#}) % 97))"
"""
TOY_TUNER = """
import sys
from pathlib import Path
from tests.study_tools import tune
name, folder, url, command = sys.argv[1:]
tune(Path(folder), command, db_path=url, study_name=name, resume=True, baseline=False).optimize()
"""
HEADER = StudyHeader(preset="toy", args={}, command="train", evaluator="regex")


def eventually(condition: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class ManyTuners:
    """Start `zenithtune optimize` several times on one study, with a trainer that notes each of its runs."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.ran = folder / "ran"
        self.processes: list[subprocess.Popen[str]] = []
        trainer = folder / "train.sh"
        trainer.write_text(TRAINER)
        trainer.chmod(0o755)

    def start(self, count: int, *options: str) -> None:
        study = ["--db", self.url, "--study-name", "s", "--resume"]
        space = ["--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--objective", r"value: (\d+)", "--maximize"]
        own = ["--", str(self.folder / "train.sh"), "--tensor-model-parallel-size", "1"]
        for index in range(len(self.processes), len(self.processes) + count):
            with (self.folder / f"err{index}").open("w") as errors, (self.folder / f"out{index}").open("w") as output:
                command = [
                    sys.executable,
                    "-m",
                    "zenith_tune.cli",
                    "optimize",
                    "--json",
                    *study,
                    *space,
                    *options,
                    *own,
                ]
                process = subprocess.Popen(
                    command, cwd=self.folder, env={**os.environ}, stdout=output, stderr=errors, text=True
                )
                self.processes.append(process)

    def wait(self, timeout_s: float = 240) -> list[int]:
        deadline = time.monotonic() + timeout_s
        return [process.wait(timeout=max(deadline - time.monotonic(), 1)) for process in self.processes]

    def events(self, name: str) -> list[list[dict[str, Any]]]:
        """Return the events of a name that each tuner told."""
        told = [map(json.loads, lines_of(self.folder / f"out{index}")) for index in range(len(self.processes))]
        return [[event for event in events if event["event"] == name] for events in told]

    def errors(self) -> str:
        return "\n".join((self.folder / f"err{index}").read_text() for index in range(len(self.processes)))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def hanging_at_first(folder: Path) -> str:
    """Return a command that notes its process, and hangs at x=1 until somebody makes the file `go`."""
    hang = f"[ {{x}} != 1 ] || [ -e {folder}/go ] || sleep 600"
    return f"sh -c 'echo $$ >> {folder}/ran-{{x}}; {hang}; echo value: {{x}}'"


def start_tuner(name: str, folder: Path, url: str, command: str) -> subprocess.Popen[str]:
    """Tune a command by the toy preset in a process of its own; whoever starts it ends it."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    program = [sys.executable, "-c", TOY_TUNER, name, str(folder), url, command]
    return subprocess.Popen(program, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL, text=True)


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
