"""What a Slurm job makes of odd answers, with a stand-in for Slurm's programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.runners.slurm.fake_slurm import FakeSlurm
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.failures.failures import FailureKind, classify
from zenith_tune.runners.base import End, JobResult
from zenith_tune.runners.slurm import job as slurm_job
from zenith_tune.runners.slurm.runner import SlurmRunner
from zenith_tune.study.resources import Resources


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm.on_path(tmp_path / "bin", monkeypatch)
    fake.answer("sbatch", "41\n")
    return fake


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmRunner]:
    monkeypatch.setattr(slurm_job, "_FORGOTTEN_S", 0.2)
    monkeypatch.setattr(slurm_job, "_RECORD_GRACE_S", 0.2)
    made = SlurmRunner(call_timeout_s=5, grace_s=0.2)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "trial"
    path.mkdir()
    return path


def ended(runner: SlurmRunner, slurm: FakeSlurm, folder: Path, state: str, reason: str = "None") -> JobResult:
    slurm.answer("squeue", f"41|{state}|{reason}|n[1-2]|0:07|zenithtune\n")
    result = runner.submit("train", folder, Resources()).wait(500)
    assert result is not None
    return result


def note_exit(folder: Path, code: int, job_id: str = "41") -> None:
    (folder / "process").write_text(f"job {job_id}\nnodes n[1-2]\ntime 100.5\n")
    (folder / "exit_code").write_text(f"job {job_id}\ncode {code}\ntime 103.0\n")


def test_the_trials_own_record_tells_its_exit_code_and_its_duration(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    note_exit(folder, 3)
    result = ended(runner, slurm, folder, "FAILED", "NonZeroExitCode")
    assert result == JobResult(end=End.EXITED, exit_code=3, duration_s=2.5, place="n1,n2")


def test_an_exit_code_of_0_after_a_lost_node_means_nothing(runner: SlurmRunner, slurm: FakeSlurm, folder: Path) -> None:
    slurm.answer("scontrol", "NodeName=n1 State=IDLE\nNodeName=n2 State=DOWN+NOT_RESPONDING Reason=Not responding\n")
    result = ended(runner, slurm, folder, "NODE_FAIL", "NodeDown")
    assert (result.end, result.exit_code, result.place) == (End.LOST, None, "n2")
    assert "NODE_FAIL" in result.reason and "n2" in result.reason and "n1" not in result.reason


def test_a_late_record_of_an_earlier_job_in_the_same_folder_does_not_count(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    note_exit(folder, 0, job_id="40")
    slurm.answer("scontrol", "JobId=41 JobState=FAILED ExitCode=0:9\n")
    result = ended(runner, slurm, folder, "FAILED", "RaisedSignal:9")
    assert (result.end, result.exit_code) == (End.EXITED, 137)


def test_a_job_out_of_host_memory_is_classified_so(runner: SlurmRunner, slurm: FakeSlurm, folder: Path) -> None:
    result = ended(runner, slurm, folder, "OUT_OF_MEMORY", "OutOfMemory")
    failure = classify((folder / "log.txt").read_text(), result.exit_code)
    assert result.end is End.EXITED
    assert failure is not None and failure.kind is FailureKind.HOST_OUT_OF_MEMORY
    assert "job 41" in failure.message


@pytest.mark.parametrize(
    ("state", "end", "word"),
    [
        ("TIMEOUT", End.TIMED_OUT, "time limit"),
        ("PREEMPTED", End.REVOKED, "preempted"),
        ("DEADLINE", End.REVOKED, "deadline"),
        ("CANCELLED", End.REVOKED, "cancelled"),
        ("BOOT_FAIL", End.LOST, "BOOT_FAIL on n1,n2"),
    ],
)
def test_each_end_of_slurms_has_its_meaning(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path, state: str, end: End, word: str
) -> None:
    result = ended(runner, slurm, folder, state)
    assert (result.end, result.exit_code) == (end, None) and word in result.reason


def test_a_job_that_slurm_has_forgotten_is_judged_by_its_record(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    slurm.refuse("squeue", "slurm_load_jobs error: Invalid job id specified\n")
    job = runner.submit("train", folder, Resources())
    note_exit(folder, 0)
    result = job.wait(500)
    assert result is not None and (result.end, result.exit_code) == (End.EXITED, 0)


def test_a_job_that_slurm_has_forgotten_without_a_record_is_lost(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    slurm.answer("squeue", "")
    result = runner.submit("train", folder, Resources()).wait(500)
    assert result is not None and (result.end, result.place) == (End.LOST, "")
    assert "job 41" in result.reason


def test_a_job_that_is_held_is_shown_and_ends_its_trial(runner: SlurmRunner, slurm: FakeSlurm, folder: Path) -> None:
    slurm.answer("scancel", "")
    slurm.answer("squeue", "41|PENDING|JobHeldUser||0:00|zenithtune\n")
    states: list[str] = []
    result = runner.submit("train", folder, Resources(), on_state=states.append).wait(500)
    assert result is not None and (result.end, result.exit_code) == (End.EXITED, None)
    assert states == ["pending (JobHeldUser)"] and "JobHeldUser" in result.reason
    assert slurm.calls("scancel") == ["41"]


@pytest.mark.usefixtures("runner")
def test_a_scheduler_that_hangs_is_waited_for_and_reported_once(slurm: FakeSlurm, folder: Path) -> None:
    slurm.hang("squeue", 60)
    states: list[str] = []
    job = SlurmRunner(call_timeout_s=1, grace_s=0.2).submit("train", folder, Resources(), on_state=states.append)
    assert job.wait(3) is None
    assert len(states) == 1 and mentions(states[0], "squeue", "1 s")
    note_exit(folder, 0)
    slurm.answer("squeue", "41|COMPLETED|None|n1|0:07|zenithtune\n")
    result = job.wait(500)
    assert result is not None and result.exit_code == 0


def test_a_job_that_sbatch_took_without_an_answer_is_not_submitted_again(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    # The name is the runner's secret: the stand-in gives back the one that it was called with.
    program = slurm.folder / "squeue"
    program.write_text(
        '#!/bin/bash\nname=$(grep -o "job-name=[^ ]*" "$(dirname "$0")/sbatch.calls" | cut -d= -f2)\n'
        'echo "57|COMPLETED|None|n1|0:01|$name"\n'
    )
    slurm.refuse("sbatch", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n")
    note_exit(folder, 0, job_id="57")
    result = runner.submit("train", folder, Resources()).wait(500)
    assert result is not None and result.exit_code == 0
    assert len(slurm.calls("sbatch")) == 1
    assert json.loads((folder / "job.json").read_text())["job"] == "57"


def test_an_interrupt_ends_the_wait_for_a_scheduler_that_does_not_take_jobs(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    slurm.refuse("sbatch", "Unable to contact slurm controller (connect failure)\n")
    slurm.refuse("squeue", "Unable to contact slurm controller (connect failure)\n")
    start = time.monotonic()
    result = runner.submit("train", folder, Resources(), on_state=lambda _: runner.interrupt()).wait()
    assert result.end is End.CANCELLED and runner.num_running == 0
    assert time.monotonic() - start < 300


def test_a_second_interrupt_does_not_wait_for_a_scheduler_that_is_gone(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    slurm.answer("squeue", "41|RUNNING|None|n1|0:07|zenithtune\n")
    slurm.refuse("scancel", "scancel: error: Unable to contact slurm controller (connect failure)\n")
    states: list[str] = []
    job = runner.submit("train", folder, Resources(), on_state=states.append)
    for _ in range(2):
        runner.interrupt()
    start = time.monotonic()
    assert job.wait().end is End.CANCELLED
    assert time.monotonic() - start < 300
    assert mentions(states[-1], "job 41", "cancelled")


def test_slurm_must_answer_before_the_study_begins(runner: SlurmRunner, slurm: FakeSlurm) -> None:
    slurm.refuse("scontrol", "slurm_load_partitions: Unable to contact slurm controller (connect failure)\n")
    with pytest.raises(UsageError, match="Unable to contact slurm controller"):
        runner.prepare(Resources(), None)


def test_a_job_whose_script_never_began_says_what_to_look_at(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    slurm.answer("scontrol", "JobId=41 JobState=FAILED ExitCode=0:53\n")
    result = ended(runner, slurm, folder, "FAILED", "RaisedSignal:53")
    assert result.exit_code == 181
    log = (folder / "log.txt").read_text()
    assert "job 41" in log and f"n1,n2 see {folder}?" in log


def test_a_listener_that_fails_ends_the_wait_with_its_error_and_cancels_the_job(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    def fail(state: str) -> None:
        raise BrokenPipeError(state)

    slurm.answer("squeue", "41|RUNNING|None|n1|0:07|zenithtune\n")
    job = runner.submit("train", folder, Resources(), on_state=fail)
    with pytest.raises(BrokenPipeError, match=r"running.* n1$"):
        job.wait()
    job.cancel()
    assert slurm.calls("scancel") == ["41"] and runner.num_running == 0


def test_a_trial_whose_node_failed_avoids_it_unless_too_few_are_left(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    partition = "PartitionName=main Default=YES MaxNodes=UNLIMITED MaxTime=UNLIMITED"
    nodes = [f"NodeName=n{i} CPUTot=8 Gres=gpu:8 RealMemory=1 State=IDLE Partitions=main" for i in (1, 2)]
    slurm.answer("scontrol", "\n".join([partition, *nodes]) + "\n")
    slurm.answer("squeue", "41|CANCELLED|None|n1|0:07|zenithtune\n")
    runner.prepare(Resources(), 1)
    runner.submit("train", folder, Resources(avoid=("n1",))).wait()
    assert "--exclude=n1 " in slurm.calls("sbatch")[-1]
    runner.submit("train", folder, Resources(nodes=2, avoid=("n1",))).wait()
    assert "--exclude" not in slurm.calls("sbatch")[-1]


def test_a_secret_stands_neither_in_sbatchs_arguments_nor_in_a_file(
    runner: SlurmRunner, slurm: FakeSlurm, folder: Path
) -> None:
    slurm.answer("squeue", "41|CANCELLED|None|n1|0:07|zenithtune\n")
    runner.submit("train --token hf_secret", folder, Resources()).wait()
    assert "hf_secret" not in "".join(slurm.calls("sbatch"))
    assert "hf_secret" in slurm.script
    assert not [path for path in folder.rglob("*") if path.is_file() and "hf_secret" in path.read_text()]
