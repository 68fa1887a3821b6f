"""Real signals to a real tuner with real trials."""

from __future__ import annotations

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import toy_plugin
from tests.requirements import need_root
from tests.started_processes import marked_processes, start_forked, start_process, wait_until
from tests.warm_process import WarmCommand
from zenith_tune.record.source import find_study

NUM_KILLS = 50
NUM_POINTS = 160


def start(folder: Path, command: str, *options: str, n: int = NUM_POINTS) -> WarmCommand:
    """Start the command line with the toy preset in a process of its own."""
    return start_forked(_arguments(command, *options, n=n), folder, _environment(folder))


def start_interpreter(folder: Path, command: str, *options: str, n: int = NUM_POINTS) -> subprocess.Popen[str]:
    """Start it as a user does: from nothing, and with pipes."""
    return start_process(
        [sys.executable, "-m", "zenith_tune.cli.main", *_arguments(command, *options, n=n)],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _arguments(command: str, *options: str, n: int) -> list[str]:
    return ["optimize", "-v", "--preset", "toy", "--args", f"n={n}", "--study-name", "s", *options, "--", command]


def _environment(folder: Path) -> dict[str, str]:
    plugins = folder / "plugins"
    env = toy_plugin.install(plugins) if not plugins.exists() else {}
    return {**os.environ, **(env or {"PYTHONPATH": os.pathsep.join([str(plugins), str(Path(__file__).parents[2])])})}


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_trial_keeps_what_is_finished_and_prints_the_best(
    tmp_path: Path, signum: int, code: int
) -> None:
    command = f"sh -c 'echo value: {{x}}; [ {{x}} -lt 3 ] || {{ touch {tmp_path}/third; sleep 1000; }}'"
    tuner = start(tmp_path, command)
    wait_until((tmp_path / "third").exists)
    tuner.send_signal(signum)
    stdout, stderr = tuner.communicate(timeout=500)
    assert tuner.returncode == code, stderr
    assert "best: trial 1, x=2: 2" in stdout
    assert f"interrupted by {signal.Signals(signum).name}" in stdout
    assert "to continue: zenithtune resume s" in stdout
    assert "Traceback" not in stderr
    assert marked_processes(tmp_path) == []
    assert states(tmp_path) == Counter({"COMPLETE": 2, "FAIL": 1})


@pytest.mark.slow
def test_a_study_whose_reader_is_gone_ends_and_says_why(tmp_path: Path) -> None:
    tuner = start_interpreter(tmp_path, "sh -c 'sleep 0.1; echo value: {x}'")
    assert tuner.stdout is not None
    tuner.stdout.readline()
    tuner.stdout.close()
    tuner.stdout = None
    tuner.communicate(timeout=500)
    why = find_study("s", output_dir=tmp_path / "zenithtune-out").view().search.why_ended
    assert why.startswith("interrupted: ") and "reads" in why
    again = start(tmp_path, "sh -c 'sleep 0.1; echo value: {x}'", "--resume", "--n-trials", "3")
    stdout, stderr = again.communicate(timeout=500)
    assert again.returncode == 0, stdout + stderr


def test_an_interrupted_trial_runs_again_when_the_study_is_resumed(tmp_path: Path) -> None:
    command = f"sh -c 'echo {{x}} >> {tmp_path}/runs; [ -e {tmp_path}/go ] || sleep 1000; echo value: {{x}}'"
    tuner = start(tmp_path, command, n=2)
    wait_until((tmp_path / "runs").exists)
    tuner.send_signal(signal.SIGINT)
    tuner.communicate(timeout=500)
    (tmp_path / "go").touch()
    tuner = start(tmp_path, command, "--resume", n=2)
    stdout, _ = tuner.communicate(timeout=500)
    assert tuner.returncode == 0
    assert "best: trial 2, x=2: 2" in stdout
    assert (tmp_path / "runs").read_text().split() == ["1", "1", "2"]


def test_a_second_tuner_on_the_same_study_is_refused_with_the_others_pid(tmp_path: Path) -> None:
    command = f"sh -c 'touch {tmp_path}/on; sleep 1000; echo {{x}}'"
    first = start(tmp_path, command)
    try:
        wait_until((tmp_path / "on").exists)
        second = start(tmp_path, command, "--resume")
        _, stderr = second.communicate(timeout=500)
        assert second.returncode == 2
        assert f"process {first.pid}" in stderr and len(stderr.splitlines()) == 1
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=500)


def states(folder: Path) -> Counter[str]:
    with sqlite3.connect(folder / "zenithtune-out" / "studies.db") as database:
        rows = database.execute("select state from trials").fetchall()
    database.close()
    return Counter(state for (state,) in rows)


def finished_points(folder: Path) -> set[str]:
    """Return the points whose trials are recorded as finished, straight from the database."""
    path = folder / "zenithtune-out" / "studies.db"
    if not path.exists():
        return set()
    database = sqlite3.connect(path)
    try:
        database.execute("pragma busy_timeout = 10000")
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        # The tables are made one after another; this one comes after `trials`.
        if not database.execute("select 1 from sqlite_master where name = 'trial_params'").fetchone():
            return set()
        rows = database.execute(
            "select param_value from trials join trial_params using (trial_id) where state = 'COMPLETE'"
        )
        return {str(int(index) + 1) for (index,) in rows}
    finally:
        database.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_fifty_kills_lose_no_finished_trial_and_run_none_twice(tmp_path: Path) -> None:
    rng = random.Random(20261115)
    runs = tmp_path / "runs"
    command = f"sh -c 'echo {{x}} >> {runs}; sleep 0.03; echo value: {{x}}'"
    seen: dict[str, int] = {}

    def num_started() -> int:
        return len(runs.read_text().split()) if runs.exists() else 0

    for _ in range(NUM_KILLS):
        # By what the study has done and not by the clock, so that a slow machine gets as far as a quick one.
        stop_at = num_started() + rng.randint(0, 3)
        tuner = start(tmp_path, command, "--resume")
        while num_started() < stop_at and tuner.poll() is None:
            time.sleep(0.01)
        time.sleep(rng.uniform(0.0, 0.2))
        tuner.kill()
        tuner.communicate()
        finished = finished_points(tmp_path)
        assert seen.keys() <= finished, "a finished trial was lost"
        counts = Counter(runs.read_text().split()) if runs.exists() else Counter()
        assert all(counts[x] == count for x, count in seen.items()), "a finished trial was run again"
        seen = {x: counts[x] for x in finished}
    assert len(seen) > 20, "the kills left no time for trials: the test shows nothing"
    tuner = start(tmp_path, command, "--resume")
    stdout, stderr = tuner.communicate(timeout=500)
    assert tuner.returncode == 0, stderr
    assert f"x={NUM_POINTS}: {NUM_POINTS}" in stdout
    assert finished_points(tmp_path) == {str(x) for x in range(1, NUM_POINTS + 1)}
    assert states(tmp_path)["COMPLETE"] == NUM_POINTS, "each point is finished once"
    assert states(tmp_path)["RUNNING"] == 0
    assert marked_processes(tmp_path) == []


def test_an_orphan_that_still_runs_is_ended_and_run_again(tmp_path: Path) -> None:
    command = f"sh -c 'echo {{x}} >> {tmp_path}/runs; [ -e {tmp_path}/go ] || sleep 1000; echo value: {{x}}'"
    tuner = start(tmp_path, command, n=1)
    wait_until((tmp_path / "runs").exists)
    tuner.kill()
    tuner.communicate()
    orphans = marked_processes(tmp_path)
    assert orphans
    (tmp_path / "go").touch()
    tuner = start(tmp_path, command, "--resume", n=1)
    stdout, _ = tuner.communicate(timeout=500)
    assert re.search(r"trial 0, .*ended .*again", stdout)
    assert not set(orphans) & set(marked_processes(tmp_path))
    assert (tmp_path / "runs").read_text().split() == ["1", "1"]


@pytest.mark.slow
def test_an_orphan_that_finished_by_itself_is_kept(tmp_path: Path) -> None:
    wait = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done"
    command = f"sh -c 'echo {{x}} >> {tmp_path}/runs; {wait}; echo value: {{x}}'"
    tuner = start(tmp_path, command, n=1)
    wait_until((tmp_path / "runs").exists)
    tuner.kill()
    tuner.communicate()
    (tmp_path / "go").touch()
    wait_until(lambda: not marked_processes(tmp_path))
    tuner = start(tmp_path, command, "--resume", n=1)
    stdout, _ = tuner.communicate(timeout=500)
    assert "had finished: kept" in stdout
    assert "best: trial 0, x=1: 1" in stdout
    assert (tmp_path / "runs").read_text().split() == ["1"]


def test_a_repeat_that_had_finished_when_its_tuner_was_killed_does_not_run_again(tmp_path: Path) -> None:
    runs, gate = tmp_path / "runs", tmp_path / "go"
    wait = f"[ $(wc -l < {runs}) != 2 ] || while [ ! -e {gate} ]; do sleep 0.02; done"
    command = f"sh -c 'echo {{x}} >> {runs}; {wait}; echo value: {{x}}'"
    tuner = start(tmp_path, command, "--repeats", "3", n=1)
    wait_until(lambda: runs.exists() and runs.read_text().count("\n") == 2)
    tuner.kill()
    tuner.communicate()
    tuner = start(tmp_path, command, "--repeats", "3", "--resume", n=1)
    tuner.communicate(timeout=500)
    assert tuner.returncode == 0
    assert runs.read_text().count("\n") == 4, "the first is kept, the second was cut off and runs again"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Mount a real file system of one megabyte."""
    need_root()
    mounted: list[Path] = []

    def mount() -> Path:
        path = tmp_path / "disk"
        path.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)], check=True)
        mounted.append(path)
        return path

    yield mount
    for path in mounted:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_full_for_some_seconds_under_a_trial_is_waited_for(
    tmp_path: Path, small_disk: Callable[[], Path]
) -> None:
    disk, marker = small_disk(), tmp_path / "filled"
    fill = f"[ {{x}} != 2 ] || ! mkdir {marker} || dd if=/dev/zero of={disk}/ballast || exit 1"
    tuner = start(tmp_path, f"sh -c '{fill}; echo value: {{x}}'", "--output-dir", str(disk), n=3)
    wait_until(marker.exists)
    time.sleep(6)
    (disk / "ballast").unlink()
    stdout, stderr = tuner.communicate(timeout=500)
    assert tuner.returncode == 0, stderr
    assert "waiting" in stdout and re.search(r"x=2 +ok +2\b", stdout) and re.search(r"x=3 +ok +3\b", stdout), stdout


@pytest.mark.slow
@pytest.mark.parametrize("filler", ["log", "other"])
def test_a_full_disk_stops_the_study_clearly_and_leaves_the_record_intact(
    tmp_path: Path, small_disk: Callable[[], Path], filler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(toy_plugin.PATIENCE, "2")
    disk = small_disk()
    fill = "head -c 2000000 /dev/zero" if filler == "log" else f"head -c 2000000 /dev/zero > {disk}/ballast"
    command = f"sh -c 'if [ {{x}} = 4 ] && [ ! -e {tmp_path}/go ]; then {fill} || exit 1; fi; echo value: {{x}}'"
    tuner = start(tmp_path, command, "--output-dir", str(disk), n=6)
    _, stderr = tuner.communicate(timeout=500)
    assert tuner.returncode == 1, stderr
    assert "no space left" in stderr and len(stderr.strip().splitlines()) == 1, stderr
    (tmp_path / "go").touch()
    for path in [disk / "ballast", *disk.glob("s/trials/0003/log.txt")]:
        path.unlink(missing_ok=True)
    tuner = start(tmp_path, command, "--output-dir", str(disk), "--resume", n=6)
    stdout, stderr = tuner.communicate(timeout=500)
    assert tuner.returncode == 0, stderr
    assert re.search(r"resumed: 3 .*best 3 \(trial 2\)", stdout)
    assert "x=6: 6" in stdout
