"""The hostfile runner on real ssh servers, the real torchrun, and DeepSpeed's real launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import ENGINE_ENV
from tests.engines.ssh_hosts import SshHosts, ssh_hosts
from tests.mentions import mentions
from tests.requirements import need_module, skip
from tests.started_processes import marked_processes, start_process
from tests.study_tools import Witness, tune
from tests.toy_preset import ToyPreset
from tests.warm_process import warm_python
from zenith_tune.errors import UsageError
from zenith_tune.runners.base import End
from zenith_tune.runners.hostfile.hosts import HostShell
from zenith_tune.runners.hostfile.runner import HostfileRunner
from zenith_tune.runners.launch.process_tree import MARK
from zenith_tune.study.resources import Resources
from zenith_tune.testing import RunnerContract

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
print(f" iteration 1/ 1 | rank {dist.get_rank()} | sum {value.item()} |", flush=True)
dist.destroy_process_group()
"""
TELL_RANK = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], os.environ['SSH_CONNECTION'])"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshHosts]:
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), 4) as started:
        yield started


@pytest.fixture
def runner(hosts: SshHosts, tmp_path: Path) -> Iterator[HostfileRunner]:
    made = HostfileRunner(hostfile=hosts.hostfile(tmp_path / "hosts"), ssh=str(hosts.ssh), grace_s=0.5)
    yield made
    for path in tmp_path.iterdir():
        if marked_processes(path):  # a test that failed left it
            made.recover(path)
    made.close()


class TestHostfileRunner(RunnerContract):
    scheduler_logs_too = True  # a shell on the host may remark that its program was ended

    @pytest.fixture(autouse=True)
    def _made(self, hosts: SshHosts, tmp_path: Path) -> Iterator[None]:
        path = hosts.hostfile(tmp_path.parent / f"{tmp_path.name}-hosts", num=1)
        self._runners: list[HostfileRunner] = []
        self._new: Callable[[], HostfileRunner] = lambda: HostfileRunner(hostfile=path, ssh=str(hosts.ssh), grace_s=0.5)
        yield
        for runner in self._runners:
            runner.close()

    def make(self) -> HostfileRunner:
        self._runners.append(self._new())
        return self._runners[-1]


def folder(tmp_path: Path, name: str) -> Path:
    (tmp_path / name).mkdir()
    return tmp_path / name


@pytest.mark.slow
def test_a_connection_that_breaks_under_a_trial_is_a_lost_host(runner: HostfileRunner, tmp_path: Path) -> None:
    job = runner.submit("echo $NODE_RANK; exec sleep 1236", folder(tmp_path, "trial"), Resources(nodes=2))
    while not is_running("sleep 1236") or len(job.log_path.read_text().splitlines()) < 2:
        time.sleep(0.05)
    [server] = {parent(parent(pid)) for pid in marked_processes(tmp_path / "trial") if meets(pid, "127.0.0.3")}
    os.kill(server, signal.SIGKILL)
    result = job.wait(500)
    assert result is not None and (result.end, result.place) == (End.LOST, "127.0.0.3")
    assert "127.0.0.3" in result.reason
    assert marked_processes(tmp_path / "trial") == []


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def meets(pid: int, address: str) -> bool:
    """Tell whether this is the trial's own program on a host."""
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    is_there = any(each.startswith("SSH_CONNECTION=") and each.split()[2] == address for each in variables)
    return is_there and Path(f"/proc/{pid}/cmdline").read_text().startswith("sleep")


@pytest.mark.slow
def test_torchrun_spans_two_hosts(runner: HostfileRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_module("engines", "torch")
    for name, value in ENGINE_ENV.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "all_reduce.py"
    script.write_text(ALL_REDUCE)
    states: list[str] = []
    command = f"{warm_python()} -m torch.distributed.run --nnodes 2 --nproc-per-node 1 {script}"
    job = runner.submit(command, folder(tmp_path, "trial"), Resources(nodes=2, gpus_per_node=1), on_state=states.append)
    result = job.wait()
    log = job.log_path.read_text()
    assert (result.end, result.exit_code, result.place) == (End.EXITED, 0, "127.0.0.2,127.0.0.3"), log
    assert " iteration 1/ 1 | rank 0 | sum 2.0 |" in log.splitlines()
    assert "[127.0.0.3]  iteration 1/ 1 | rank 1 | sum 2.0 |" in log.splitlines()
    assert states == ["running on 127.0.0.2,127.0.0.3"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_deepspeed_is_started_once_and_goes_to_the_trials_hosts(
    hosts: SshHosts, runner: HostfileRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_module("engines", "deepspeed")
    if subprocess.run(["which", "pdsh"], capture_output=True).returncode:
        skip("engines", "pdsh is not installed")
    script = tmp_path / "tell_rank.py"
    script.write_text(TELL_RANK)
    monkeypatch.setenv("PATH", f"{hosts.ssh.parent}:{os.environ['PATH']}")
    held = runner.submit("sleep 100", folder(tmp_path, "other"), Resources())
    command = f"{warm_python()} -m deepspeed.launcher.runner --hostfile nowhere --num_nodes 4 {script}"
    job = runner.submit(command, folder(tmp_path, "trial"), Resources(nodes=2, gpus_per_node=1))
    result = job.wait()
    held.cancel()
    log = job.log_path.read_text()
    assert (result.end, result.exit_code, result.place) == (End.EXITED, 0, "127.0.0.3,127.0.0.4"), log
    printed = [line.split() for line in log.splitlines() if " rank " in f" {line}"]
    assert sorted((line[0], line[2], line[4], line[7]) for line in printed) == [
        ("127.0.0.3:", "0", "2", "127.0.0.3"),
        ("127.0.0.4:", "1", "2", "127.0.0.4"),
    ]


@pytest.mark.slow
def test_trials_on_disjoint_hosts_run_at_once_and_a_third_waits(runner: HostfileRunner, tmp_path: Path) -> None:
    states: list[str] = []
    command = "sh -c 'echo $NODE_RANK; sleep 100'"
    two = Resources(nodes=2, gpus_per_node=2)
    first = runner.submit(command, folder(tmp_path, "1"), two)
    second = runner.submit(command, folder(tmp_path, "2"), two)
    third = runner.submit("echo $NODE_RANK", folder(tmp_path, "3"), two, on_state=states.append)
    assert (third.wait(0.3), first.poll(), second.poll()) == (None, None, None)
    [state] = states
    assert mentions(state, "pending", "2 nodes of 2 GPUs")
    assert runner.num_running == 3, "two that run and one that waits for hosts"
    second.cancel()
    result = third.wait(500)
    first.cancel()
    assert result is not None and (result.exit_code, result.place) == (0, "127.0.0.4,127.0.0.5")
    assert sorted(third.log_path.read_text().splitlines()) == ["0", "[127.0.0.5] 1"]
    assert not marked_processes(tmp_path / "1") and not marked_processes(tmp_path / "2")


def test_a_job_that_waits_for_hosts_is_interrupted(runner: HostfileRunner, tmp_path: Path) -> None:
    jobs = [
        runner.submit("echo $NODE_RANK; sleep 100", folder(tmp_path, name), Resources(nodes=4)) for name in ("1", "2")
    ]
    runner.interrupt()
    assert [job.wait(500) and job.wait().end for job in reversed(jobs)] == [End.CANCELLED, End.CANCELLED]
    assert runner.num_running == 0


def test_a_host_that_cannot_be_reached_is_lost_and_another_taken(hosts: SshHosts, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(f"127.9.9.9 slots=2\n{hosts.names[0]} slots=2\n")
    runner = HostfileRunner(hostfile=str(tmp_path / "hosts"), ssh=str(hosts.ssh), grace_s=0.5)
    result = runner.submit("true", folder(tmp_path, "1"), Resources()).wait()
    assert (result.end, result.exit_code, result.place) == (End.LOST, None, "127.9.9.9")
    assert "Connection refused" in result.reason and "127.9.9.9" in result.reason
    command = "no-such-folder/deepspeed train.py"  # which is not even looked for
    by_itself = runner.submit(command, folder(tmp_path, "4"), Resources(nodes=2)).wait()
    assert (by_itself.end, by_itself.place) == (End.LOST, "127.9.9.9") and "Connection refused" in by_itself.reason
    again = runner.submit("true", folder(tmp_path, "2"), Resources(avoid=("127.9.9.9",))).wait()
    own = hosts.names[0]
    assert (again.end, again.place) == (End.EXITED, own)
    runner.close()


BREAKS_ITS_CONNECTION_ONCE = """
[ -e $1 ] && { echo value: 1; exit; }
touch $1
pid=$$
until grep -q sshd /proc/$pid/comm; do pid=$(cut -d' ' -f4 /proc/$pid/stat); done
kill -9 $pid
sleep 1000
"""


@pytest.mark.slow
def test_a_trial_whose_only_host_failed_runs_once_more_on_it(hosts: SshHosts, tmp_path: Path) -> None:
    script, witness, [name] = tmp_path / "train.sh", Witness(), hosts.names[:1]
    script.write_text(BREAKS_ITS_CONNECTION_ONCE)
    runner = HostfileRunner(hostfile=hosts.hostfile(tmp_path / "hosts", num=1), ssh=str(hosts.ssh), grace_s=0.5)
    command = f"bash {script} {tmp_path / 'began'} {{x}}"
    tune(tmp_path, command, ToyPreset([1]), listener=witness, baseline=False, runner=runner).optimize()
    [trial] = witness.trials
    assert trial.ok and trial.extra["place"] == name and mentions(str(trial.extra["lost"]), name)


@pytest.mark.slow
def test_a_study_does_not_begin_without_hosts_that_answer_and_avoids_those_that_do_not(
    hosts: SshHosts, tmp_path: Path
) -> None:
    (tmp_path / "hosts").write_text(f"127.9.9.9 slots=2\n{hosts.names[0]} slots=2\n")
    runner = HostfileRunner(hostfile=str(tmp_path / "hosts"), ssh=str(hosts.ssh), grace_s=0.5)
    with pytest.raises(UsageError, match=r"127\.9\.9\.9 of .*hosts .*refused.*`.* 127\.9\.9\.9 true`"):
        runner.prepare(Resources(nodes=2), None)
    runner.prepare(Resources(), None)
    assert runner.num_slots == 1 and "127.9.9.9" in runner.warnings()[0]
    result = runner.submit("true", folder(tmp_path, "1"), Resources()).wait()
    assert (result.end, result.place) == (End.EXITED, hosts.names[0])
    runner.close()


def test_a_failing_host_ends_its_gang_with_its_exit_code(runner: HostfileRunner, tmp_path: Path) -> None:
    command = 'sh -c "[ $NODE_RANK = 1 ] && exit 255; sleep 1"'
    result = runner.submit(command, folder(tmp_path, "trial"), Resources(nodes=2)).wait()
    assert (result.end, result.exit_code) == (End.EXITED, 254), "255 is what ssh says of a lost host"


def test_nothing_stays_on_a_host_not_even_what_sheds_its_mark(hosts: SshHosts, tmp_path: Path) -> None:
    shell = HostShell(name=hosts.names[1], ssh=str(hosts.ssh))
    path = folder(tmp_path, "a trial's")
    started = 'trap "" TERM; env -i sleep 1234 & setsid sh -c "trap \'\' TERM; sleep 1235" & echo up; wait'
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    process = start_process(
        shell.argv(["env", f"{MARK}={path}", "sh", "-c", started]), stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    assert len(marked_processes(path)) >= 2 and is_running("sleep 1234")
    begin = time.monotonic()
    shell.end_marked(str(path), grace_s=0.5)
    assert process.wait(500) == 255 and time.monotonic() - begin > 0.5
    process.stdout.close()
    assert marked_processes(path) == [] and not is_running("sleep 1234") and not is_running("sleep 1235")


def is_running(command: str) -> bool:
    return subprocess.run(["pgrep", "-fx", command], capture_output=True).returncode == 0


def test_what_a_killed_tuner_left_on_its_hosts_is_ended(
    hosts: SshHosts, runner: HostfileRunner, tmp_path: Path
) -> None:
    path, hostfile = folder(tmp_path, "trial"), tmp_path / "hosts"
    program = (
        "import os, sys, time; from pathlib import Path; from zenith_tune.study.resources import Resources\n"
        "from zenith_tune.runners.hostfile.runner import HostfileRunner\n"
        "runner = HostfileRunner(hostfile=sys.argv[1], ssh=sys.argv[2])\n"
        "job = runner.submit('sh -c \"echo $NODE_RANK up; sleep 100\"', Path(sys.argv[3]), Resources(nodes=2))\n"
        "while job.log_path.read_text().count('up') < 2: time.sleep(0.05)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, hostfile, hosts.ssh, path], timeout=500)
    assert marked_processes(path)
    assert runner.recover(path) is None
    assert marked_processes(path) == []


def test_what_no_host_can_hold_is_refused_in_one_line(runner: HostfileRunner) -> None:
    runner.prepare(Resources(nodes=2, gpus_per_node=2), None)
    assert runner.num_slots == 2
    assert "2 trials" in runner.notes()[0] and "2 hosts" in runner.notes()[0]
    with pytest.raises(UsageError, match=r"\b5 nodes of 2 GPUs.*\b4\b.*\b2 slots"):
        runner.prepare(Resources(nodes=5, gpus_per_node=2), None)
    with pytest.raises(UsageError, match=r"\b0 of 4 hosts.*\b3 slots"):
        runner.prepare(Resources(gpus_per_node=3), None)
    with pytest.raises(UsageError, match=r"\b6 hosts.*\b2\b"):
        runner.prepare(Resources(nodes=2), 3)


@pytest.mark.parametrize(
    ("text", "part"), [(None, "No such file"), ("", "host"), ("-oProxyCommand=x slots=1\n", "ssh takes")]
)
def test_a_hostfile_that_cannot_serve_is_refused(tmp_path: Path, text: str | None, part: str) -> None:
    if text is not None:
        (tmp_path / "hosts").write_text(text)
    with pytest.raises(UsageError, match=part):
        HostfileRunner(hostfile=str(tmp_path / "hosts"))
