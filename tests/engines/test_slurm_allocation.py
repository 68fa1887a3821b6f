"""Trials as steps inside an allocation that the user already has, and many of them as jobs, on a real cluster."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.slurm_cluster import SlurmCluster, need_slurm, slurm_cluster
from tests.study_tools import Witness
from tests.toy_preset import ToyPreset
from zenith_tune import Outcome, PresetTuner
from zenith_tune.errors import UsageError
from zenith_tune.resources import Resources
from zenith_tune.runners.base import End
from zenith_tune.runners.slurm import SlurmRunner

pytestmark = pytest.mark.slow

NOTE = """
start=$(date +%s.%N); sleep {seconds}; end=$(date +%s.%N)
echo "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $start $end" > "$ZENITHTUNE_TRIAL_FOLDER/used"
echo "value: $1"
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    need_slurm()
    with slurm_cluster(tmp_path_factory.mktemp("cluster")) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started


@pytest.fixture
def allocation(cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Hold two nodes of 8 GPUs, as salloc would, for one test."""
    cluster.run("salloc", "--no-shell", "--job-name=mine", "--nodes=2", "--gpus-per-node=8", "--cpus-per-task=8")
    [job_id] = [job_id for job_id, state, name in cluster.jobs() if name == "mine" and state == "RUNNING"]
    monkeypatch.setenv("SLURM_JOB_ID", job_id)
    yield job_id
    cluster.run("scancel", job_id)


def steps(cluster: SlurmCluster, job_id: str) -> list[str]:
    shown = cluster.run("squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i").split()
    return [step for step in shown if not step.endswith(("extern", "batch"))]


def gpu_use(out: Path) -> list[tuple[str, float, float]]:
    """Return who used which GPU of which node from when to when."""
    used = []
    for path in out.glob("s/trials/*/used"):
        node, gpus, start, end = path.read_text().split()
        used += [(f"{node}:{gpu}", float(start), float(end)) for gpu in gpus.split(",")]
    return sorted(used)


def run_study(tmp_path: Path, runner: SlurmRunner, num_trials: int, seconds: float) -> tuple[Witness, float, object]:
    trainer = tmp_path / "trainer.sh"
    trainer.write_text(NOTE.replace("{seconds}", f"{seconds:g}"))
    witness = Witness()
    tuner = PresetTuner(
        f"bash {trainer} {{x}}",
        ToyPreset(range(num_trials)),
        output_dir=tmp_path,
        study_name="s",
        listener=witness,
        runner=runner,
        parallel=None,
        needs={"gpus_per_node": 4},
    )
    start = time.monotonic()
    best = tuner.optimize()
    return witness, time.monotonic() - start, best


def check_no_gpu_was_given_twice(used: list[tuple[str, float, float]]) -> None:
    for (gpu, _, end), (next_gpu, start, _) in itertools.pairwise(used):
        assert gpu != next_gpu or start >= end, f"{gpu} was given to two trials at once"


def test_sixteen_trials_of_half_a_node_share_the_cluster_and_no_gpu_is_given_twice(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    witness, elapsed_s, best = run_study(tmp_path, SlurmRunner(), num_trials=16, seconds=1)
    assert [trial.outcome for trial in witness.trials] == [Outcome.OK] * 16
    used = gpu_use(tmp_path)
    assert len(used) == 16 * 4
    check_no_gpu_was_given_twice(used)
    assert best == (15.0, {"x": 15})
    assert elapsed_s < 14  # in sequence 16 s and as many starts, at best 2 s


def test_trials_run_as_steps_side_by_side_inside_an_allocation(
    cluster: SlurmCluster, allocation: str, tmp_path: Path
) -> None:
    before = len(cluster.jobs())
    runner = SlurmRunner()
    witness, _, best = run_study(tmp_path, runner, num_trials=5, seconds=1)
    assert runner.num_slots == 4
    assert [trial.outcome for trial in witness.trials] == [Outcome.OK] * 5
    assert best == (4.0, {"x": 4})
    used = gpu_use(tmp_path)
    check_no_gpu_was_given_twice(used)
    first = min(end for _, _, end in used)
    assert len([gpu for gpu, start, _ in used if start < first]) == 16
    assert len(cluster.jobs()) == before and {trial.extra["place"] for trial in witness.trials} <= {*cluster.nodes}


def test_a_step_spans_nodes_and_each_knows_its_rank(allocation: str, tmp_path: Path) -> None:
    job = SlurmRunner(nodes=2, gpus_per_node=2).submit("echo $NODE_RANK/$PET_NNODES", tmp_path, Resources())
    result = job.wait()
    assert (result.end, result.exit_code, result.place.count(",")) == (End.EXITED, 0, 1)
    assert sorted(job.log_path.read_text().split()) == ["0/2", "1/2"]


def test_a_step_that_is_ended_leaves_nothing_in_the_allocation(
    cluster: SlurmCluster, allocation: str, tmp_path: Path
) -> None:
    job = SlurmRunner(gpus_per_node=4, grace_s=1).submit("echo begun; sleep 100", tmp_path, Resources())
    deadline = time.monotonic() + 30
    while not (job.log_path.exists() and job.log_path.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    job.cancel()
    result = job.poll()
    assert result is not None and result.end is End.CANCELLED
    while steps(cluster, allocation) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert steps(cluster, allocation) == []
    assert json.loads((tmp_path / "job.json").read_text())["allocation"] == allocation


def test_what_the_allocation_cannot_hold_is_refused_at_once(allocation: str) -> None:
    with pytest.raises(UsageError, match=f"3 nodes of 8 GPUs.*job {allocation} has 2 nodes of 8 GPUs"):
        SlurmRunner(nodes=3, gpus_per_node=8).prepare(Resources(), None)


def test_a_command_with_ranks_of_its_own_has_the_allocation_to_itself(allocation: str, tmp_path: Path) -> None:
    runner = SlurmRunner(nodes=2, gpus_per_node=4)
    runner.prepare(Resources(), None)
    with pytest.raises(UsageError, match="has an allocation to itself"):
        runner.submit("srun --ntasks=2 hostname", tmp_path, Resources())
    runner.prepare(Resources(), 1)
    job = runner.submit("srun --nodes=2 --ntasks=2 sh -c 'echo $SLURM_PROCID'", tmp_path, Resources())
    assert job.wait().exit_code == 0
    assert sorted(job.log_path.read_text().split()) == ["0", "1"]
