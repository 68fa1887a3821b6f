"""Trials as steps inside an allocation that the user already has, on a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.gpu_use import MEETING, NOTE, check_no_gpu_was_given_twice, gpu_use
from tests.engines.slurm_cluster import SlurmCluster
from tests.mentions import mentions
from tests.study_tools import Witness
from tests.toy_preset import ToyPreset
from zenith_tune import Outcome, PresetTuner
from zenith_tune.errors import UsageError
from zenith_tune.runners.base import End
from zenith_tune.runners.slurm.runner import SlurmRunner
from zenith_tune.study.resources import Resources

pytestmark = pytest.mark.slow


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


def run_study(
    tmp_path: Path, runner: SlurmRunner, num_trials: int, seconds: float, script: str = NOTE
) -> tuple[Witness, object]:
    trainer = tmp_path / "trainer.sh"
    trainer.write_text(script)
    witness = Witness()
    tuner = PresetTuner(
        f"bash {trainer} {{x}} {seconds:g}",
        ToyPreset(range(num_trials)),
        output_dir=tmp_path,
        study_name="s",
        listener=witness,
        runner=runner,
        parallel="auto",
        gpus_per_trial=4,
    )
    return witness, tuner.optimize()


def test_trials_run_as_steps_side_by_side_inside_an_allocation(
    cluster: SlurmCluster, allocation: str, tmp_path: Path
) -> None:
    before = len(cluster.jobs())
    runner = SlurmRunner()
    witness, best = run_study(tmp_path, runner, 5, 4, MEETING)
    assert runner.num_slots == 4
    assert [trial.outcome for trial in witness.trials] == [Outcome.OK] * 5
    assert best == (4.0, {"x": 4})
    used = gpu_use(tmp_path / "s")
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
    deadline = time.monotonic() + 500
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
    with pytest.raises(UsageError, match=f"3 nodes of 8 GPUs.*job {allocation} .*2 nodes of 8 GPUs"):
        SlurmRunner(nodes=3, gpus_per_node=8).prepare(Resources(), None)


def test_a_command_with_ranks_of_its_own_has_the_allocation_to_itself(allocation: str, tmp_path: Path) -> None:
    runner = SlurmRunner(nodes=2, gpus_per_node=4)
    runner.prepare(Resources(), None)
    with pytest.raises(UsageError, match="allocation"):
        runner.submit("srun --ntasks=2 hostname", tmp_path, Resources())
    runner.prepare(Resources(), 1)
    job = runner.submit("srun --nodes=2 --ntasks=2 sh -c 'echo $SLURM_PROCID'", tmp_path, Resources())
    assert job.wait().exit_code == 0
    assert sorted(job.log_path.read_text().split()) == ["0", "1"]


def test_a_step_without_room_is_pending_and_its_clock_stands_still(allocation: str, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    states: list[str] = []
    first = SlurmRunner(nodes=2, gpus_per_node=8).submit("sleep 11", folders[0], Resources())
    while not (folders[0] / "nodes").exists():
        time.sleep(0.02)
    second = SlurmRunner(gpus_per_node=4).submit(
        "sleep 0.2", folders[1], Resources(), timeout_s=10, on_state=states.append
    )
    result = second.wait()
    assert (result.end, result.exit_code) == (End.EXITED, 0) and first.wait().exit_code == 0
    pending, running = states
    assert mentions(pending, "pending", f"job {allocation}") and mentions(running, "running", result.place)
    assert 0.1 < result.duration_s < 10


def test_a_step_that_runs_for_too_long_is_ended(cluster: SlurmCluster, allocation: str, tmp_path: Path) -> None:
    job = SlurmRunner(gpus_per_node=4, grace_s=1).submit("sleep 100", tmp_path, Resources(), timeout_s=1)
    result = job.wait()
    assert result.end is End.TIMED_OUT and 1 <= result.duration_s < 90
    assert steps(cluster, allocation) == []


def test_no_more_steps_are_started_than_the_allocation_holds(allocation: str) -> None:
    runner = SlurmRunner(gpus_per_node=4)
    runner.prepare(Resources(), 6)
    assert runner.num_slots == 4
    [note] = runner.notes()
    assert mentions(note, f"job {allocation}", "4 GPUs", 6)


def inside_srun(tmp_path: Path, *srun: str) -> subprocess.CompletedProcess[str]:
    """Tune inside a step, which holds what it asked for."""
    (tmp_path / "trainer.sh").write_text(MEETING)
    study = ["--preset", "demo", "--objective", r"value: (\d+)", "--maximize", "--no-baseline", "--study-name", "s"]
    where = ["--slurm", "gpus_per_node=4", "--parallel", "auto", "--n-trials", "4", "--output-dir", str(tmp_path)]
    tuner = [sys.executable, "-m", "zenith_tune.cli.main", "optimize", *study, *where]
    command = ["bash", str(tmp_path / "trainer.sh"), "{mbs}", "2", "{tp}", "{recompute}", "{gbs}"]
    argv = ["srun", *srun, *tuner, "--", *command]
    return subprocess.run(argv, env={**os.environ}, capture_output=True, text=True, timeout=500)


@pytest.mark.usefixtures("cluster")
def test_inside_srun_trials_share_what_the_step_around_them_holds(tmp_path: Path) -> None:
    done = inside_srun(tmp_path, "--nodes=1", "--ntasks=1", "--gpus-per-node=8", "--cpus-per-task=8")
    assert done.returncode == 0, done.stderr
    used = gpu_use(tmp_path / "s")
    assert len(used) == 4 * 4
    check_no_gpu_was_given_twice(used)
    first = min(end for _, _, end in used)
    assert len([gpu for gpu, start, _ in used if start < first]) == 8


@pytest.mark.usefixtures("allocation")
def test_inside_a_step_with_some_of_the_gpus_it_is_refused_at_once(tmp_path: Path) -> None:
    done = inside_srun(tmp_path, "--nodes=1", "--ntasks=1", "--gpus-per-node=4", "--cpus-per-task=4", "--exact")
    errors = [line for line in done.stderr.splitlines() if line.startswith("zenithtune:")]
    assert len(errors) == 1 and mentions(errors[0], 4, "8 GPUs", "salloc")
