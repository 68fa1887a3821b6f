"""What a killed probe leaves behind, with a process that stands in for its rank."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.started_processes import marked_processes
from zenith_calibration.probe.probe_file import end_leftovers, probe_lock
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources

Leave = Callable[..., TrialFolder]
TOKEN, SHAPED = "mine-and-nobody-elses", "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"


@pytest.fixture
def runner() -> Iterator[LocalRunner]:
    runner = LocalRunner(grace_s=1.0)
    yield runner
    runner.close()


@pytest.fixture
def leave(runner: LocalRunner) -> Iterator[Leave]:
    """Start a rank of a probe as the prober does, and do not wait for it."""
    jobs = []

    def start(folder: Path, command: str = "sleep 1000") -> TrialFolder:
        files = TrialFolder(folder / "layout-1" / "stage-0")
        files.path.mkdir(parents=True)
        files.command.write_text("#!/usr/bin/env bash\n")
        jobs.append(runner.submit(f"sh -c 'echo {TOKEN} {SHAPED}; {command}'", files.path, Resources()))
        deadline = time.monotonic() + 500
        while SHAPED not in files.read(files.log):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        return files

    yield start
    for job in jobs:
        job.cancel()


def test_a_rank_of_a_killed_probe_is_ended_and_its_log_masked(
    runner: LocalRunner, leave: Leave, tmp_path: Path
) -> None:
    files = leave(tmp_path / "probe-1")
    assert marked_processes(files.path)
    assert end_leftovers(tmp_path, runner, [TOKEN]) == [tmp_path / "probe-1"]
    assert marked_processes(files.path) == []
    assert files.log.read_text() == f"{'*' * len(TOKEN)} {'*' * len(SHAPED)}\n"
    kept = json.loads(files.trial.read_text())
    assert kept.keys() == {"outcome", "cause"} and kept["outcome"] == "cancelled" and kept["cause"]
    assert end_leftovers(tmp_path, runner, [TOKEN]) == [], "and that is reported once"


def test_a_rank_that_ended_by_itself_after_its_probe_is_masked_too(
    runner: LocalRunner, leave: Leave, tmp_path: Path
) -> None:
    files = leave(tmp_path / "probe-1", command="true")
    assert end_leftovers(tmp_path, runner, [TOKEN]) == [tmp_path / "probe-1"]
    assert TOKEN not in files.log.read_text()


def test_a_probe_that_runs_is_left_alone(runner: LocalRunner, leave: Leave, tmp_path: Path) -> None:
    files, lock = leave(tmp_path / "probe-1"), probe_lock(tmp_path / "probe-1")
    lock.acquire()
    assert end_leftovers(tmp_path, runner, [TOKEN]) == []
    assert marked_processes(files.path) and TOKEN in files.log.read_text() and not files.trial.exists()
    lock.release()
    assert end_leftovers(tmp_path, runner, [TOKEN]) == [tmp_path / "probe-1"]


def test_what_is_no_rank_of_a_probe_is_left_alone(runner: LocalRunner, leave: Leave, tmp_path: Path) -> None:
    other = leave(tmp_path / "study-1")
    (tmp_path / "probe-1" / "layout-1").mkdir(parents=True)
    (tmp_path / "probe-1" / "layout-1" / "stage-0").symlink_to(other.path)
    (tmp_path / "probe-2" / "layout-1" / "stage-0").mkdir(parents=True)
    done = TrialFolder(tmp_path / "probe-3" / "layout-1" / "stage-0")
    done.path.mkdir(parents=True)
    done.command.write_text("")
    done.trial.write_text("{}")
    assert end_leftovers(tmp_path, runner, [TOKEN]) == []
    assert marked_processes(other.path) and TOKEN in other.log.read_text()
