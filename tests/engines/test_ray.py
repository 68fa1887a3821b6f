"""The Ray runner on a real cluster of two nodes, which are both on this machine."""

from __future__ import annotations

import errno
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from tests.requirements import need_module
from tests.started_processes import marked_processes, start_process, wait_until
from tests.study_tools import Witness, tune
from tests.tuning.injected_faults import injected_fault
from tests.warm_process import run_python
from zenith_tune import Outcome
from zenith_tune.errors import SystemFaultError, UsageError
from zenith_tune.evaluators.failures.failures import FailureKind
from zenith_tune.runners.base import End, Job
from zenith_tune.runners.ray.runner import RayRunner
from zenith_tune.study import faults
from zenith_tune.study.resources import Resources
from zenith_tune.testing import RunnerContract

NODE = {"num_cpus": 8, "num_gpus": 8, "object_store_memory": 80 << 20}


HEAD = {
    "include_dashboard": False,
    "_system_config": {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500},  # a dead node is known soon
}


@dataclass(kw_only=True)
class TwoNodes:
    runner: RayRunner
    address: str
    second: Any
    cluster: Any

    def run(self, folder: Path, command: str, resources: Resources, states: list[str] | None = None) -> Job:
        folder.mkdir()
        hears = (lambda state: None) if states is None else states.append
        return self.runner.submit(command, folder, resources, on_state=hears)


def at_the_second_try(start: Callable[[], Any]) -> Any:
    """Start a node; Ray gives it up after 30 s, which a busy machine may miss."""
    try:
        return start()
    except Exception:
        return start()


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[TwoNodes]:
    need_module("engines", "ray")
    cluster_utils: Any = importlib.import_module("ray.cluster_utils")
    cluster = at_the_second_try(lambda: cluster_utils.Cluster(initialize_head=True, head_node_args={**NODE, **HEAD}))
    runner = RayRunner(address=cluster.address, grace_s=0.5)
    try:
        second = at_the_second_try(lambda: cluster.add_node(**NODE))
        yield TwoNodes(runner=runner, address=cluster.address, second=second, cluster=cluster)
    finally:
        runner.close()
        cluster.shutdown()


def wait_for(text: str, job: Job, times: int = 1) -> None:
    deadline = time.monotonic() + 500
    while not job.log_path.exists() or job.log_path.read_text().count(text) < times:
        assert time.monotonic() < deadline and job.poll() is None, job.poll()
        time.sleep(0.05)


@pytest.mark.slow
class TestRayRunner(RunnerContract):
    @pytest.fixture(autouse=True)
    def _shared(self, ray_nodes: TwoNodes) -> None:
        self._runner = ray_nodes.runner
        self._runner.reset()

    def make(self) -> RayRunner:
        return self._runner


def test_a_gang_spans_both_nodes_and_knows_its_ranks(ray_nodes: TwoNodes, tmp_path: Path) -> None:
    states: list[str] = []
    command = "echo $NODE_RANK of $NNODES at $MASTER_ADDR:$MASTER_PORT on $CUDA_VISIBLE_DEVICES"
    job = ray_nodes.run(tmp_path / "trial", command, Resources(nodes=2, gpus_per_node=8), states)
    result = job.wait()
    assert (result.end, result.exit_code) == (End.EXITED, 0), result
    first, second = sorted(job.log_path.read_text().splitlines(), key=lambda line: line.startswith("["))
    other = result.place.split(",")[1]
    assert first.startswith("0 of 2 at ") and first.endswith(" on 0,1,2,3,4,5,6,7")
    assert second == f"[{other}] 1{first[1:]}", "the same place to meet, and all GPUs of another node"
    assert len(set(result.place.split(","))) == 2
    assert mentions(states[-1], "running", result.place)


@pytest.mark.slow
def test_trials_side_by_side_have_gpus_of_their_own_and_one_too_many_waits(ray_nodes: TwoNodes, tmp_path: Path) -> None:
    four, states = Resources(gpus_per_node=4), list[str]()
    jobs = [
        ray_nodes.run(tmp_path / str(number), "echo up $CUDA_VISIBLE_DEVICES; sleep 100", four) for number in range(4)
    ]
    for job in jobs:
        wait_for("up", job)
    waiting = ray_nodes.run(tmp_path / "waiting", "true", four, states)
    assert waiting.wait(1.5) is None
    [state] = states
    assert mentions(state, "pending", "4 GPUs")
    assert ray_nodes.runner.num_running == 5
    for job in jobs:
        job.cancel()
    results = [job.wait() for job in jobs]
    given = {(result.place, job.log_path.read_text()) for job, result in zip(jobs, results, strict=True)}
    assert len(given) == 4 and {text for _, text in given} == {"up 0,1,2,3\n", "up 4,5,6,7\n"}
    assert {result.end for result in results} == {End.CANCELLED}
    assert waiting.wait().exit_code == 0
    assert not any(marked_processes(tmp_path / str(number)) for number in range(4))


@pytest.mark.slow
def test_nothing_is_left_of_a_trial_whose_tuner_was_killed(ray_nodes: TwoNodes, tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    program = (
        "import sys, time; from pathlib import Path; from zenith_tune.study.resources import Resources\n"
        "from zenith_tune.runners.ray.runner import RayRunner\n"
        "command = 'trap \"\" TERM; setsid sleep 1000 & echo up; wait'\n"
        "job = RayRunner(address=sys.argv[1], grace_s=0.2).submit(command, Path(sys.argv[2]), Resources())\n"
        "print(job.wait())\n"
    )
    tuner = start_process([sys.executable, "-c", program, ray_nodes.address, str(tmp_path / "trial")])
    log = tmp_path / "trial" / "log.txt"
    while not log.exists() or "up" not in log.read_text():
        assert tuner.poll() is None
        time.sleep(0.1)
    assert len(marked_processes(tmp_path / "trial")) >= 2
    os.kill(tuner.pid, signal.SIGKILL)
    tuner.wait()
    deadline = time.monotonic() + 500
    while marked_processes(tmp_path / "trial") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert marked_processes(tmp_path / "trial") == []
    assert ray_nodes.runner.recover(tmp_path / "trial") is None


# Its parent is Ray's worker. The point 1 kills it once, the point 2 always; what is left behind heeds no SIGTERM.
KILLS_ITS_WORKER = """
echo $1 >> $2
if [ $1 = 2 ] || [ "$1 $(grep -c 1 $2)" = "1 1" ]; then
    trap '' TERM
    setsid sleep 1000 &
    kill -9 $PPID
    sleep 1000
fi
echo value: $1
"""


@pytest.mark.slow
def test_a_trial_whose_worker_is_killed_runs_once_more_where_no_other_node_is_free(
    ray_nodes: TwoNodes, tmp_path: Path
) -> None:
    script, runs, witness = tmp_path / "train.sh", tmp_path / "runs", Witness()
    script.write_text(KILLS_ITS_WORKER)
    held = ray_nodes.run(tmp_path / "held", "echo up; sleep 1000", Resources(gpus_per_node=8))
    wait_for("up", held)
    tuner = tune(tmp_path, f"bash {script} {{x}} {runs}", listener=witness, baseline=False, runner=ray_nodes.runner)
    value, _ = tuner.optimize()
    held.cancel()
    once, twice, never = witness.trials
    assert [trial.outcome for trial in witness.trials] == [Outcome.OK, Outcome.ERROR, Outcome.OK] and value == 3.0
    assert runs.read_text().split() == ["1", "1", "2", "2", "3"]
    node = str(never.extra["place"])
    assert once.extra["place"] == node, "the node itself is well"
    assert twice.failure == FailureKind.LOST
    assert all(mentions(text, "worker", node) for text in (once.extra["lost"], twice.extra["lost"], twice.cause))
    assert not any(trial.folder is None or marked_processes(trial.folder) for trial in witness.trials)


@pytest.mark.slow
def test_a_passing_fault_on_this_machine_costs_no_trial(ray_nodes: TwoNodes, tmp_path: Path) -> None:
    with injected_fault(tmp_path / "trial", code=errno.EMFILE) as fault:
        job = ray_nodes.run(tmp_path / "trial", "echo up", Resources())
        fault.first = len(fault.calls) + 1
        with pytest.raises(OSError, match="Too many open files"):
            job.wait(500)
        result = job.wait(500)
    assert len(fault.failed) == 1 and result is not None and (result.end, result.exit_code) == (End.EXITED, 0)
    assert job.log_path.read_text() == "up\n"


@pytest.mark.slow
def test_a_deepspeed_command_keeps_to_the_gpus_that_ray_gave(ray_nodes: TwoNodes, tmp_path: Path) -> None:
    need_module("engines", "deepspeed")
    script = tmp_path / "tell.py"
    printed = " ".join(f"{{os.environ['{name}']}}" for name in ("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES"))
    script.write_text(f'import os\nos.write(1, f"rank {printed}\\n".encode())\n')  # in one piece
    held = ray_nodes.run(tmp_path / "held", "echo up $NODE_RANK; sleep 100", Resources(nodes=2, gpus_per_node=3))
    wait_for("up", held, times=2)
    command = f"{Path(sys.executable).parent / 'deepspeed'} --num_gpus 2 {script}"
    job = ray_nodes.run(tmp_path / "trial", command, Resources(nodes=2, gpus_per_node=4))
    result = job.wait()
    held.cancel()
    log = job.log_path.read_text()
    assert result.exit_code == 0, log
    assert sorted(re.findall(r"rank (\d) 4 3,4$", log, re.MULTILINE)) == ["0", "1", "2", "3"], log
    with pytest.raises(UsageError, match="--include"):
        ray_nodes.run(tmp_path / "refused", "deepspeed --include n1 train.py", Resources(nodes=2))


@pytest.mark.slow
def test_accelerate_keeps_to_what_ray_gave_whatever_the_command_says(ray_nodes: TwoNodes, tmp_path: Path) -> None:
    need_module("engines", "accelerate")
    script = tmp_path / "tell.py"
    script.write_text("import os\nprint(f\"rank {os.environ['CUDA_VISIBLE_DEVICES']} {os.environ['MASTER_PORT']}\")\n")
    held = ray_nodes.run(tmp_path / "held", "echo up $NODE_RANK; sleep 100", Resources(nodes=2, gpus_per_node=3))
    wait_for("up", held, times=2)
    launch = (
        "accelerate.commands.launch --multi_gpu --gpu_ids 0,1 --num_machines 1 --num_processes 2 --mixed_precision no"
    )
    command = f"CUDA_VISIBLE_DEVICES=0,1 {sys.executable} -m {launch} {script}"
    command = f"echo given $CUDA_VISIBLE_DEVICES $MASTER_PORT && {command}"
    job = ray_nodes.run(tmp_path / "trial", command, Resources(gpus_per_node=2))
    result = job.wait()
    held.cancel()
    log = job.log_path.read_text()
    [(gpus, port)] = [line.split()[1:] for line in log.splitlines() if line.startswith("given")]
    # Of two ranks that print at once, both may stand on one line.
    assert result.exit_code == 0 and gpus != "0,1" and log.count(f"rank {gpus} {port}") == 2, log


def test_what_can_never_fit_is_refused_in_one_line(ray_nodes: TwoNodes) -> None:
    runner = ray_nodes.runner
    runner.prepare(Resources(gpus_per_node=2), None)
    [note] = runner.notes()
    assert runner.num_slots == 8 and all(part in note for part in ("2 nodes", "8 trials", "2 GPUs"))
    with pytest.raises(UsageError, match=r"\b3 nodes of 8 GPUs.*\b2 of.* 2 nodes"):
        runner.prepare(Resources(nodes=3, gpus_per_node=8), None)
    with pytest.raises(UsageError, match=r"\b0 of its 2 nodes.*\b9 GPUs"):
        runner.prepare(Resources(gpus_per_node=9), None)
    with pytest.raises(UsageError, match=r"\b2\b.*--parallel auto"):
        runner.prepare(Resources(gpus_per_node=8), 3)


@pytest.mark.slow
def test_a_killed_node_is_named_and_its_gang_ended(
    ray_nodes: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ray_nodes.run(tmp_path / "trial", "echo up $NODE_RANK; sleep 1000", Resources(nodes=2, gpus_per_node=8))
    wait_for("up", job, times=2)
    ray_nodes.cluster.remove_node(ray_nodes.second, allow_graceful=False)
    result = job.wait(500)
    lost = ray_nodes.second.node_id[:6]
    assert result is not None and (result.end, result.exit_code) == (End.LOST, None)
    assert result.place.endswith(f"#{lost}") and mentions(result.reason, result.place)
    assert marked_processes(tmp_path / "trial") == []
    again = ray_nodes.run(tmp_path / "again", "true", Resources(avoid=(result.place,))).wait()
    assert (again.end, again.exit_code) == (End.EXITED, 0) and lost not in again.place
    only = ray_nodes.run(tmp_path / "only", "true", Resources(avoid=(again.place,))).wait()
    assert (only.end, only.place) == (End.EXITED, again.place), "there is no other node left"
    monkeypatch.setattr(faults, "DEFAULT_PATIENCE_S", 0.5)
    with pytest.raises(SystemFaultError, match=r"\b2 nodes of 8 GPUs.*\b1 of its 1 nodes.*--resume"):
        ray_nodes.run(tmp_path / "never", "echo $NODE_RANK", Resources(nodes=2, gpus_per_node=8)).wait(500)


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['ray'] = None\n"
        "from zenith_tune.study.resources import Resources; from zenith_tune.runners.ray.runner import RayRunner\n"
        "from zenith_tune.errors import UsageError\n"
        "try: RayRunner().prepare(Resources())\n"
        "except UsageError as error: print(error)\n"
    )
    ran = run_python(["-c", program], tmp_path, os.environ, timeout_s=500)
    assert "pip install 'zenith-tune[ray]'" in ran.stdout, ran.stderr


MAIN = (sys.executable, "-m", "zenith_tune.cli.main")
HEAD_TO_KILL = """
import sys
from pathlib import Path
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": 80 << 20} | HEAD)
print(cluster.address, flush=True)
sys.stdin.readline()
cluster.head_node.kill_gcs_server()
sys.stdin.readline()
cluster.shutdown()
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_cluster_whose_head_is_gone_stops_the_study_which_keeps_its_results(tmp_path: Path) -> None:
    need_module("engines", "ray")
    head = start_process(
        [sys.executable, "-c", HEAD_TO_KILL.replace("| HEAD", f"| {HEAD!r}")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert head.stdin is not None and head.stdout is not None
    address = head.stdout.readline().strip()
    (tmp_path / "t.sh").write_text(f"echo value: $1; echo $1 >> {tmp_path}/runs; [ $1 = 1 ] || sleep 300\n")
    space = ["--space", "x=1,2", "--objective", r"value: (\S+)", "--strategy", "grid", "--no-baseline"]
    place = ["--ray-address", address, "--output-dir", str(tmp_path / "out"), "--study-name", "s"]
    tuner = start_process(
        [*MAIN, "optimize", *place, *space, "--", "bash", f"{tmp_path}/t.sh", "{x}"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_until(lambda: (tmp_path / "runs").exists() and "2" in (tmp_path / "runs").read_text())
    head.stdin.write("kill\n")
    head.stdin.flush()
    _, stderr = tuner.communicate(timeout=300)
    assert tuner.returncode == 1 and mentions(stderr, address, "does not answer", "--resume"), stderr
    assert (tmp_path / "out/s/study.json").is_file()
    head.stdin.write("end\n")
    head.stdin.flush()
    head.wait(timeout=60)
