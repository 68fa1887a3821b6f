from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.requirements import skip
from tests.started_processes import is_alive, wait_until
from zenith_tune.errors import UsageError
from zenith_tune.runners.base import End
from zenith_tune.runners.launch.process_tree import ProcessTree
from zenith_tune.runners.local import runner as local
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources
from zenith_tune.testing import RunnerContract


class TestLocalRunner(RunnerContract):
    def make(self) -> LocalRunner:
        return LocalRunner(grace_s=0.5)


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
children = [subprocess.Popen([sys.executable, "-c", code], start_new_session=own) for own in (False, True)]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open(sys.argv[1] + ".daemon.tmp", "w") as file:
            file.write(str(os.getpid()))
        os.rename(sys.argv[1] + ".daemon.tmp", sys.argv[1] + ".daemon")
        time.sleep(1000)
    os._exit(0)
while not os.path.exists(sys.argv[1] + ".daemon"):
    time.sleep(0.01)
with open(sys.argv[1] + ".tmp", "w") as file:
    file.write(" ".join(str(p.pid) for p in children) + " " + str(os.getpid()))
os.rename(sys.argv[1] + ".tmp", sys.argv[1])
time.sleep(1000)
"""


def start_stubborn(tmp_path: Path) -> tuple[str, Path]:
    """Write a program that ignores SIGTERM, has children that do, one in its own session, and a daemon."""
    script, pids = tmp_path / "stubborn.py", tmp_path / "pids"
    script.write_text(STUBBORN)
    return f"{sys.executable} {script} {pids}", pids


def read_pids(path: Path) -> list[int]:
    daemon = int(Path(f"{path}.daemon").read_text())
    return [daemon, *map(int, path.read_text().split())]


def side_by_side(monkeypatch: pytest.MonkeyPatch, gpus: str = "0,1,2,3") -> LocalRunner:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    runner = LocalRunner(grace_s=0.5)
    runner.prepare(Resources(gpus_per_node=2), None)
    return runner


@pytest.mark.parametrize("start", ["{}", "env {}", "export {};"])
def test_trials_side_by_side_keep_to_their_own_whatever_the_command_sets(
    start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = side_by_side(monkeypatch)
    command = f"{start.format('CUDA_VISIBLE_DEVICES=0,1 MASTER_PORT=29500')} {sys.executable} -c "
    command += '\'import os; print(os.environ["CUDA_VISIBLE_DEVICES"], os.environ["MASTER_PORT"])\''
    jobs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        jobs.append(runner.submit(command, tmp_path / name, Resources(gpus_per_node=2)))
    assert [job.wait().exit_code for job in jobs] == [0, 0]
    printed = [job.log_path.read_text().split() for job in jobs]
    assert [gpus for gpus, _ in printed] == ["0,1", "2,3"] and printed[0][1] != printed[1][1]
    assert len(runner.command_notes(command)) == 2


def test_a_script_that_names_its_gpus_runs_alone_but_not_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t.sh").write_text("export CUDA_VISIBLE_DEVICES=0,1\necho $CUDA_VISIBLE_DEVICES\n")
    command = f"bash {tmp_path / 't.sh'}"
    with pytest.raises(UsageError, match=r"CUDA_VISIBLE_DEVICES.*t\.sh"):
        side_by_side(monkeypatch).submit(command, tmp_path, Resources(gpus_per_node=2))
    job = side_by_side(monkeypatch, "2,3").submit(command, tmp_path, Resources(gpus_per_node=2))
    assert job.wait().exit_code == 0 and job.log_path.read_text() == "0,1\n"


def test_a_timeout_leaves_no_descendant_neither_deaf_nor_in_another_session(tmp_path: Path) -> None:
    command, pids = start_stubborn(tmp_path)
    folder = tmp_path / "trial"
    folder.mkdir()
    runner = LocalRunner(grace_s=0.3)
    job = runner.submit(command, folder, Resources(), timeout_s=500)
    wait_until(pids.exists)
    found = read_pids(pids)
    assert all(is_alive(pid) for pid in found) and job.began is not None
    job.began -= 500  # as if it had run for so long
    assert job.wait().end is End.TIMED_OUT
    assert [pid for pid in found if is_alive(pid)] == []


def test_where_trials_end_at_once_the_last_ends_what_no_trial_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, both = [], threading.Barrier(2)
    monkeypatch.setattr(local, "adopt_orphans", lambda: None)
    runner = LocalRunner(owns_process=True)
    monkeypatch.setattr(local, "end_adopted", lambda *_: ended.append(len(runner.running)))
    monkeypatch.setattr(ProcessTree, "end", lambda *_: both.wait(100))
    runner.prepare(Resources(), 2)
    jobs = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        jobs.append(runner.submit("true", tmp_path / name, Resources()))
    threads = [threading.Thread(target=job.wait) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(500)
    assert [job.wait().exit_code for job in jobs] == [0, 0] and ended == [0]


def test_a_stop_leaves_no_descendant_neither_deaf_nor_in_another_session(tmp_path: Path) -> None:
    command, pids = start_stubborn(tmp_path)
    folder = tmp_path / "trial"
    folder.mkdir()
    job = LocalRunner(grace_s=0.3).submit(command, folder, Resources())
    wait_until(pids.exists)
    found = read_pids(pids)
    job.stop()
    assert job.wait().end is End.STOPPED
    assert [pid for pid in found if is_alive(pid)] == []


def test_what_a_finished_command_left_in_the_background_is_ended(tmp_path: Path) -> None:
    left = tmp_path / "left"
    command = f"bash -c 'setsid sleep 1000 & echo $! > {left}; sleep 1000 & echo $! >> {left}; exit 0'"
    result = LocalRunner(grace_s=0.3).submit(command, tmp_path, Resources()).wait()
    assert (result.end, result.exit_code) == (End.EXITED, 0)
    pids = [int(line) for line in left.read_text().split()]
    assert len(pids) == 2
    assert [pid for pid in pids if is_alive(pid)] == []


def test_a_process_that_is_not_the_trials_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        LocalRunner(grace_s=0.2).submit("sleep 1000", tmp_path, Resources(), timeout_s=0.2).wait()
        assert is_alive(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


TUNER = (
    "import sys, time; from pathlib import Path; from zenith_tune.runners.local.runner import LocalRunner; "
    "from zenith_tune.study.resources import Resources; "
    "LocalRunner().submit(sys.argv[1], Path(sys.argv[2]), Resources()); time.sleep(1000)"
)
"""Starts a trial and waits, to be killed."""


def test_an_orphan_of_a_killed_tuner_is_recognised_and_ended(tmp_path: Path) -> None:
    command, pids = start_stubborn(tmp_path)
    folder = tmp_path / "trial"
    folder.mkdir()
    tuner = subprocess.Popen([sys.executable, "-c", TUNER, command, str(folder)])
    wait_until(pids.exists)
    tuner.send_signal(signal.SIGKILL)
    tuner.wait()
    found = read_pids(pids)
    assert all(is_alive(pid) for pid in found)
    assert LocalRunner(grace_s=0.3).recover(folder) is None
    assert [pid for pid in found if is_alive(pid)] == []


def test_what_a_finished_orphan_left_in_its_session_is_ended(tmp_path: Path) -> None:
    folder = tmp_path / "trial"
    folder.mkdir()
    # Without the trial's variable: only the session tells whose it is. It must not be ended by the tuner itself.
    command = f"sh -c 'env -i sleep 1000 & echo $! > {tmp_path}/pid; kill -9 $(cat {tmp_path}/tuner)'"
    tuner = subprocess.Popen(
        [sys.executable, "-c", TUNER, f"until [ -e {tmp_path}/tuner ]; do :; done; {command}", str(folder)]
    )
    (tmp_path / "tuner.part").write_text(str(tuner.pid))
    (tmp_path / "tuner.part").rename(tmp_path / "tuner")
    tuner.wait()
    wait_until(lambda: TrialFolder(folder).read(TrialFolder(folder).exit_code) != "")
    left = int((tmp_path / "pid").read_text())
    try:
        assert is_alive(left)
        result = LocalRunner(grace_s=0.3).recover(folder)
        assert result is not None and result.exit_code == 0
        assert not is_alive(left)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(left, signal.SIGKILL)


def test_another_process_with_the_orphans_pid_is_not_touched(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        fields = Path(f"/proc/{stranger.pid}/stat").read_text().rpartition(")")
        rest = fields[2].split()
        rest[19] = "1"  # another start time: the pid was given anew
        (tmp_path / "process").write_text(f"{boot}{fields[0]}) {' '.join(rest)}\n")
        assert LocalRunner(grace_s=0.2).recover(tmp_path) is None
        assert is_alive(stranger.pid)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_second_interrupt_ends_a_deaf_trial_at_once(tmp_path: Path) -> None:
    command, pids = start_stubborn(tmp_path)
    runner = LocalRunner(grace_s=600)
    job = runner.submit(command, tmp_path, Resources())
    wait_until(pids.exists)
    runner.interrupt()
    threading.Timer(0.5, runner.interrupt).start()
    start = time.monotonic()
    assert job.wait().end is End.CANCELLED
    assert time.monotonic() - start < 200


def test_a_failure_in_front_of_a_pipe_is_a_failure(tmp_path: Path) -> None:
    assert LocalRunner().submit("false | cat", tmp_path, Resources()).wait().exit_code == 1


def test_assignments_in_front_and_quotes_reach_the_program(tmp_path: Path) -> None:
    code = "import os, sys; print(os.environ['A'], sys.argv[1:])"
    job = LocalRunner().submit(f'A="x  y" {sys.executable} -c "{code}" "b c" \'$HOME\'', tmp_path, Resources())
    assert job.wait().exit_code == 0
    assert job.log_path.read_text() == "x  y ['b c', '$HOME']\n"


def test_a_command_that_reads_its_input_finds_none(tmp_path: Path) -> None:
    assert LocalRunner().submit("cat", tmp_path, Resources(), timeout_s=120).wait().end is End.EXITED


@pytest.mark.slow
def test_a_log_of_two_gigabytes_without_newlines_does_not_fill_memory(tmp_path: Path) -> None:
    if os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize < 4 * 2**30:
        skip("disk", "less than 4 GiB are free")
    try:
        log = tmp_path / "log.txt"
        with log.open("wb") as file:
            for _ in range(2048):
                file.write(b"x" * 2**20)
        # In a process of its own, whose peak of memory is that of the reading alone; getrusage would count this one's,
        # from which it was forked.
        code = (
            "import re, sys; from pathlib import Path; from zenith_tune.study.trial_log import TrialLog; "
            "print(len(TrialLog(Path(sys.argv[1])).text()), "
            "re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1])"
        )
        read = subprocess.run([sys.executable, "-c", code, log], capture_output=True, text=True, check=True)
        num_characters, peak_kib = map(int, read.stdout.split())
        assert num_characters < 64 * 2**20
        assert peak_kib < 400 * 1024
    finally:
        (tmp_path / "log.txt").unlink()


def test_trials_keep_the_caches_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TORCH_EXTENSIONS_DIR", "CUDA_CACHE_PATH", "XDG_CACHE_HOME")
    for name in names:
        monkeypatch.setenv(name, f"/caches/{name}")
    code = "import os, sys, tempfile; "
    code += "print(os.getcwd(), os.path.expanduser('~'), tempfile.gettempdir(), *map(os.environ.get, sys.argv[1:]))"
    own = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True).stdout
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        command = shlex.join([sys.executable, "-c", code, *names])
        assert LocalRunner().submit(command, tmp_path / name, Resources()).wait().exit_code == 0
        assert (tmp_path / name / "log.txt").read_text() == own


HOLDING = """
import os, pathlib, sys, time
os.environ.setdefault("TORCH_EXTENSIONS_DIR", sys.argv[1])
lock = os.path.join(os.environ["TORCH_EXTENSIONS_DIR"], sys.argv[2], "lock")
os.makedirs(os.path.dirname(lock), exist_ok=True)
held = os.open(lock, os.O_CREAT | os.O_EXCL)
pathlib.Path(sys.argv[1], sys.argv[2] + ".ready").touch()
time.sleep(1000)
"""


@pytest.mark.parametrize("place", ["torch_extensions", "elsewhere"])
def test_an_ended_trial_leaves_no_lock_on_a_build_of_torchs(tmp_path: Path, place: str) -> None:
    (script := tmp_path / "build.py").write_text(HOLDING)
    (root := tmp_path / place).mkdir()
    holding = [sys.executable, str(script), str(root)]
    other = subprocess.Popen([*holding, "other"], env={**os.environ, "TORCH_EXTENSIONS_DIR": str(root)})
    try:
        runner = LocalRunner(grace_s=0.5)
        folder = tmp_path / "trial"
        folder.mkdir()
        job = runner.submit(shlex.join(["env", f"TORCH_EXTENSIONS_DIR={root}", *holding, "ours"]), folder, Resources())
        wait_until(lambda: all((root / f"{name}.ready").exists() for name in ("ours", "other")))
        assert (root / "ours" / "lock").exists()
        job.cancel()
        assert not (root / "ours" / "lock").exists() and (root / "other" / "lock").exists()
        runner.close()
    finally:
        other.kill()
        other.wait()
