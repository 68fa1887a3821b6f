"""The script of a trial's job, run by bash where a job would."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.started_processes import marked_processes
from zenith_tune.runners.launch.process_tree import MARK
from zenith_tune.runners.slurm.script import Launch, SlurmScript, launched_command
from zenith_tune.study.resources import Resources

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1"}


def script_environment(tmp_path: Path) -> dict[str, str]:
    return {**JOB, "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}


def test_the_script_is_valid_bash_whatever_the_command(tmp_path: Path) -> None:
    for launch in Launch:
        script = SlurmScript(
            command="echo 'it''s' \"$x\" \\\n | cat # {tp}",
            folder=tmp_path / "a b'c",
            cwd=tmp_path,
            launch=launch,
            setup="module load cuda/12.4; source env/bin/activate  # mine",
        ).text()
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_a_setup_that_fails_ends_the_trial_before_its_command(tmp_path: Path) -> None:
    script = SlurmScript(
        command="echo trained", folder=tmp_path, cwd=tmp_path, launch=Launch.ONCE, setup="module_that_is_not_there"
    ).text()
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=script_environment(tmp_path))
    assert done.returncode == 127 and "setup" in done.stderr
    assert "trained" not in done.stdout
    assert (tmp_path / "exit_code").read_text().splitlines()[:2] == ["job 7", "code 127"]


def test_what_a_command_leaves_behind_ends_with_its_script_and_what_others_run_does_not(tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    left = "setsid -f sleep 311; setsid -f sh -c 'trap : TERM; sleep 311; sleep 311'; exit 4"
    script = SlurmScript(command=left, folder=tmp_path / "trial", cwd=tmp_path, launch=Launch.ONCE, grace_s=0.3).text()
    with subprocess.Popen(["sleep", "312"], env={MARK: str(tmp_path / "trial-2")}) as other:
        done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=script_environment(tmp_path))
        assert (done.returncode, marked_processes(tmp_path / "trial")) == (4, [])
        assert other.poll() is None
        other.kill()
    assert (tmp_path / "trial/exit_code").read_text().splitlines()[:2] == ["job 7", "code 4"]


def test_a_script_that_is_asked_to_end_ends_its_command_and_notes_no_exit_code(tmp_path: Path) -> None:
    command = "setsid -f sh -c 'trap : TERM; sleep 313; sleep 313'; echo up; sleep 313"
    script = SlurmScript(command=command, folder=tmp_path, cwd=tmp_path, launch=Launch.ONCE, grace_s=0.3).text()
    (tmp_path / "job.sh").write_text(script)
    environment = script_environment(tmp_path)
    with subprocess.Popen(["bash", tmp_path / "job.sh"], stdout=subprocess.PIPE, text=True, env=environment) as job:
        assert job.stdout is not None and job.stdout.readline() == "up\n"
        job.terminate()
        assert job.wait(500) == 128 + signal.SIGTERM
    assert marked_processes(tmp_path) == [] and not (tmp_path / "exit_code").exists()


def test_a_command_in_a_script_can_be_interrupted_as_anywhere_else(tmp_path: Path) -> None:
    script = SlurmScript(command="kill -INT $$", folder=tmp_path, cwd=tmp_path, launch=Launch.ONCE).text()
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=script_environment(tmp_path))
    assert done.returncode == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("launch", "code", "num_sweeps"), [(Launch.ONCE, 0, 1), (Launch.EACH_NODE, 0, 0), (Launch.EACH_NODE, 15, 1)]
)
def test_the_other_nodes_are_swept_by_one_step_unless_each_did_it_itself(
    tmp_path: Path, launch: Launch, code: int, num_sweeps: int
) -> None:
    srun = tmp_path / "bin/srun"
    srun.parent.mkdir()
    srun.write_text(f'#!/bin/sh\necho "$1 ${MARK}" >> {tmp_path}/steps\nexit {code}\n')
    srun.chmod(0o755)
    script = SlurmScript(command=f"exit {code}", folder=tmp_path, cwd=tmp_path, launch=launch, num_nodes=2).text()
    done = subprocess.run(["bash"], input=script, text=True, capture_output=True, env=script_environment(tmp_path))
    steps = (tmp_path / "steps").read_text().splitlines() if (tmp_path / "steps").exists() else []
    trial = ["--nodes=1 "] if launch is Launch.EACH_NODE else []
    assert (done.returncode, steps) == (code, [*trial, *["--overlap "] * num_sweeps])


def test_a_command_is_launched_by_its_first_program() -> None:
    commands = ("srun python t.py", "torchrun t.py", "deepspeed --launcher slurm t.py")
    assert [str(Launch.of(command, 2)) for command in commands] == ["once", "each-node", "hostfile"]


def test_a_launcher_gets_the_port_of_its_job() -> None:
    assert (
        launched_command("deepspeed --num_gpus 4 train.py", Launch.ONCE, Resources())
        == 'deepspeed --master_port "$MASTER_PORT" --num_gpus 4 train.py'
    )
