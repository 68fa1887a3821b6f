"""The Slurm runner on a real cluster of four nodes with eight fake GPUs each."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.slurm_cluster import SlurmCluster
from tests.mentions import mentions
from tests.started_processes import marked_processes, start_process, wait_until
from tests.study_tools import Witness
from tests.thoroughness import few_quick
from tests.toy_plugin import install
from tests.toy_preset import ToyPreset
from zenith_tune import PresetTuner
from zenith_tune.errors import UsageError
from zenith_tune.runners.base import End
from zenith_tune.runners.slurm.runner import SlurmRunner
from zenith_tune.study.resources import Resources
from zenith_tune.testing import RunnerContract

pytestmark = pytest.mark.usefixtures("cluster")


def active(cluster: SlurmCluster) -> list[list[str]]:
    return [each for each in cluster.jobs() if each[1] in ("PENDING", "RUNNING", "COMPLETING")]


class TestSlurmRunner(RunnerContract):
    scheduler_logs_too = True

    def make(self) -> SlurmRunner:
        return SlurmRunner(grace_s=1)


def test_a_job_in_an_odd_folder_gets_its_gpus_its_node_and_the_tuners_folder(tmp_path: Path) -> None:
    folder = tmp_path / 'it\'s 100% "odd" $HOME'
    folder.mkdir()
    states: list[str] = []
    runner = SlurmRunner(gpus_per_node=3, setup="export READY='it is'")
    job = runner.submit('echo "$CUDA_VISIBLE_DEVICES|$READY|$PWD|$NNODES"', folder, Resources(), on_state=states.append)
    result = job.wait()
    assert (result.end, result.exit_code) == (End.EXITED, 0)
    assert job.log_path.read_text() == f"0,1,2|it is|{Path.cwd()}|1\n"
    assert result.place in ("n1", "n2", "n3", "n4") and states[-1:] in ([], [f"running on {result.place}"], ["pending"])
    assert 0 < result.duration_s < 120


def test_a_program_runs_once_on_each_node_and_knows_its_rank(tmp_path: Path) -> None:
    runner = SlurmRunner(nodes=2, gpus_per_node=8)
    command = "echo $NODE_RANK of $NNODES at $MASTER_ADDR:$MASTER_PORT $PET_NODE_RANK/$PET_NNODES on $SLURMD_NODENAME"
    job = runner.submit(command, tmp_path, Resources())
    result = job.wait()
    lines = sorted(job.log_path.read_text().splitlines())
    first, second = result.place.split(",")
    port = 20000 + int(json.loads((tmp_path / "job.json").read_text())["job"]) % 12000
    assert lines == [
        f"0 of 2 at {first}:{port} 0/2 on {first}",
        f"1 of 2 at {first}:{port} 1/2 on {second}",
    ]


def test_the_exit_code_of_any_node_is_the_trials(tmp_path: Path) -> None:
    result = SlurmRunner(nodes=2).submit("sh -c 'exit $((NODE_RANK * 5))'", tmp_path, Resources()).wait()
    assert (result.end, result.exit_code) == (End.EXITED, 5)


def test_a_command_that_launches_itself_runs_once(tmp_path: Path) -> None:
    job = SlurmRunner(nodes=2).submit("srun sh -c 'echo $SLURM_PROCID'", tmp_path, Resources())
    job.wait()
    assert sorted(job.log_path.read_text().split()) == ["0", "1"]


def test_deepspeed_with_a_launcher_of_its_own_reads_the_nodes_from_a_host_file(tmp_path: Path) -> None:
    folder, fake = tmp_path / "trial", tmp_path / "deepspeed"
    folder.mkdir()
    fake.write_text('#!/bin/sh\necho "$@"; while [ "$1" != --hostfile ]; do shift; done; cat "$2"\n')
    fake.chmod(0o755)
    job = SlurmRunner(nodes=2, gpus_per_node=4).submit(
        f"{fake} --launcher slurm --num_gpus 4 train.py", folder, Resources()
    )
    result = job.wait()
    first, second = result.place.split(",")
    asked, *hosts = job.log_path.read_text().splitlines()
    assert (
        asked.endswith(f"--hostfile {folder}/hostfile --launcher slurm --num_gpus 4 train.py")
        and "--master_port 2" in asked
    )
    assert hosts == [f"{first} slots=4", f"{second} slots=4"]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"nodes": 5}, ["5 nodes", "partition main has 4"]),
        ({"gpus_per_node": 9}, ["9 GPUs", "8 GPUs, 16 CPUs and 64000 MB", "nodes=", "partition="]),
        ({"partition": "man"}, ["'man'", "'main'"]),
        ({"partition": "short", "nodes": 2}, ["2 nodes", "partition short has 1"]),
        ({"partition": "short", "time": "00:20:00"}, ["time=00:20:00", "partition short"]),
        ({"constraint": "nosuch"}, ["constraint=nosuch", "partition main", "fake"]),
        ({"exclude": "n[1-4]"}, ["partition main has 0", "exclude="]),
        ({"extra": "--gres=nosuch:1"}, ["never", "--slurm"]),
    ],
)
def test_what_can_never_start_is_refused_at_once(asked: dict[str, object], named: list[str]) -> None:
    runner = SlurmRunner(**asked)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as refused:
        runner.prepare(Resources(), None)
    assert [part for part in named if part not in str(refused.value)] == []


def test_as_many_trials_run_side_by_side_as_the_partition_holds() -> None:
    runner = SlurmRunner()
    runner.prepare(Resources(gpus_per_node=4), None)
    assert runner.num_slots == 8 + 2
    [note] = runner.notes()
    assert mentions(note, "4 GPUs", 8, "2 wait")
    runner.prepare(Resources(nodes=3, gpus_per_node=8), None)
    assert runner.num_slots == 1


def test_a_job_that_turns_out_to_pend_for_ever_is_cancelled_and_says_why(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = SlurmRunner(nodes=5).submit("true", tmp_path, Resources())
    result = job.wait()
    assert (result.end, result.exit_code) == (End.EXITED, None)
    assert re.search(r"pending \(Partition(NodeLimit|Config)\)", result.reason)
    assert f"error: {result.reason}" in job.log_path.read_text()
    assert not active(cluster)


def test_a_refusal_of_sbatch_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Requested node configuration is not available"):
        SlurmRunner(gpus_per_node=9).submit("true", tmp_path, Resources())


def test_a_trial_on_full_nodes_waits_with_its_reason_and_its_clock_stands_still(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    full = cluster.run(
        "sbatch", "--parsable", "--nodes=4", "--gpus-per-node=8", "--output=/dev/null", "--wrap=sleep 60"
    )
    states: list[str] = []
    job = SlurmRunner(gpus_per_node=1).submit("sleep 0.1", tmp_path, Resources(), timeout_s=5, on_state=states.append)
    wait_until(lambda: "pending (Resources)" in states)
    assert job.wait(5.5) is None
    cluster.run("scancel", full.strip())
    result = job.wait()
    assert (result.end, result.exit_code) == (End.EXITED, 0)


def test_a_job_that_a_person_holds_ends_its_trial(cluster: SlurmCluster, tmp_path: Path) -> None:
    job = SlurmRunner(extra="--begin=now+1hour").submit("true", tmp_path, Resources())
    assert job.wait(1) is None
    cluster.run("scontrol", "hold", json.loads((tmp_path / "job.json").read_text())["job"])
    result = job.wait(500)
    assert result is not None and re.search(r"pending \(JobHeld(User|Admin)\)", result.reason)
    assert not active(cluster)


def test_a_job_that_is_killed_between_sbatch_and_its_note_is_found_by_its_name(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    job = SlurmRunner().submit("sleep 1; exit 4", tmp_path, Resources())
    noted = json.loads((tmp_path / "job.json").read_text())
    (tmp_path / "job.json").write_text(json.dumps({**noted, "job": None}))
    found = SlurmRunner().find(tmp_path)
    assert found is not None
    result = found.wait()
    assert (result.end, result.exit_code) == (End.EXITED, 4) and job.wait() == result
    assert json.loads((tmp_path / "job.json").read_text())["job"] == noted["job"]


def test_a_job_that_somebody_else_ended_is_not_taken_for_a_failure(cluster: SlurmCluster, tmp_path: Path) -> None:
    states: list[str] = []
    job = SlurmRunner().submit("sleep 60", tmp_path, Resources(), on_state=states.append)
    wait_until(lambda: states and states[-1].startswith("running"))
    cluster.run("scancel", json.loads((tmp_path / "job.json").read_text())["job"])
    result = job.wait()
    assert result.end is End.REVOKED and "cancelled" in result.reason


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_daemon_does_not_outlive_the_trial_that_started_it(nodes: int, tmp_path: Path) -> None:
    command = "sh -c 'setsid -f sleep 302; setsid -f sh -c \"trap : TERM; sleep 303; sleep 303\"; exit 3'"
    runner = SlurmRunner(nodes=nodes, grace_s=0.5)
    result = runner.submit(command, tmp_path, Resources()).wait()
    assert (result.end, result.exit_code) == (End.EXITED, 3)
    assert marked_processes(tmp_path) == []


@pytest.mark.parametrize("nodes", few_quick([1, 2], 1))
@pytest.mark.parametrize("signal_options", [(), ("--signal=KILL", "--full")], ids=["cancelled", "killed"])
def test_a_daemon_does_not_outlive_a_trial_that_is_cancelled_or_killed(
    nodes: int, signal_options: tuple[str, ...], cluster: SlurmCluster, tmp_path: Path
) -> None:
    command = "sh -c 'setsid -f sh -c \"trap : TERM; sleep 303; sleep 303\"; echo up; sleep 300'"
    job = SlurmRunner(nodes=nodes, grace_s=0.5).submit(command, tmp_path, Resources())
    wait_until(lambda: job.log_path.exists() and job.log_path.read_text().count("up") == nodes)
    if signal_options:  # as on a busy node, where SIGKILL can come before the script has handled its SIGTERM
        cluster.run("scancel", *signal_options, json.loads((tmp_path / "job.json").read_text())["job"])
    else:
        job.cancel()
    wait_until(lambda: not marked_processes(tmp_path))
    assert not (tmp_path / "exit_code").exists()


STUDY = [
    "--preset",
    "toy",
    "--args",
    "n=2",
    "--no-baseline",
    "--study-name",
    "s",
    "--parallel",
    "2",
    "--slurm",
    "gpus_per_node=4",
]


def start_study(tmp_path: Path, command: str, *options: str) -> subprocess.Popen[str]:
    environment = {**os.environ, **install(tmp_path / "plugin")} if not options else dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "plugin"), str(Path.cwd())])
    argv = [sys.executable, "-m", "zenith_tune.cli.main", "optimize", "-v", *STUDY, *options, "--json", "--", command]
    return start_process(argv, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def begun(tmp_path: Path) -> int:
    return len(list(tmp_path.glob("zenithtune-out/s/trials/*/process")))


def fill(cluster: SlurmCluster, *shares: tuple[int, int]) -> list[str]:
    """Hold nodes with so many GPUs of each, and return the jobs that do."""
    sizes = [[f"--nodes={nodes}", f"--gpus-per-node={gpus}", "--cpus-per-task=2"] for nodes, gpus in shares]
    wrap = ["--output=/dev/null", "--wrap=sleep 600"]
    return [cluster.run("sbatch", "--parsable", *size, *wrap).strip() for size in sizes]


@pytest.mark.slow
def test_a_tuner_killed_with_9_finds_its_jobs_again_and_submits_none_twice(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    full = fill(cluster, (3, 8), (1, 4))  # there is room for one of the two trials
    before = {each[0] for each in cluster.jobs()}
    go = tmp_path / "go"  # the first trial runs for as long as the next tuner takes to come, however busy the machine
    command = f"sh -c 'until [ -e {go} ]; do sleep 0.1; done; echo value: {{x}}'"
    with start_study(tmp_path, command) as tuner:
        wait_until(lambda: begun(tmp_path) == 1 and len(cluster.jobs()) == len(before) + 2)
        tuner.send_signal(signal.SIGKILL)
    with start_study(tmp_path, command, "--resume") as resumed:
        lines = itertools.takewhile(lambda line: "study_started" not in line, resumed.stdout or [])
        before_start = "".join(lines)
        go.touch()
        cluster.run("scancel", *full)
        _, err = resumed.communicate(timeout=500)
    assert resumed.returncode == 0, err
    jobs = [each for each in cluster.jobs() if each[0] not in before]
    assert [state for _, state, _ in jobs] == ["COMPLETED"] * 2, jobs
    assert [before_start.count(note) for note in ("still runs", "still waits")] == [1, 1]
    assert [line for line in err.partition("study s:")[0].splitlines() if not line.startswith("note:")] == []
    assert re.search(r"^trial +\d  x=\d +running on n\d$", err, re.MULTILINE)
    study = json.loads((tmp_path / "zenithtune-out/s/study.json").read_text())
    assert [trial["outcome"] for trial in study["trials"]] == ["ok"] * 2


def test_ctrl_c_cancels_every_job_of_the_study(cluster: SlurmCluster, tmp_path: Path) -> None:
    with start_study(tmp_path, "sleep 100 {x}") as tuner:
        wait_until(lambda: begun(tmp_path) == 2)
        tuner.send_signal(signal.SIGINT)
        _, err = tuner.communicate(timeout=500)
    assert tuner.returncode == 130, err
    assert not active(cluster)


@pytest.mark.slow
def test_the_nodes_of_a_batch_script_are_the_nodes_of_its_trials(tmp_path: Path) -> None:
    script, witness = tmp_path / "job.sh", Witness()
    lines = ["#!/bin/bash", "#SBATCH --nodes=2", "#SBATCH --gpus-per-node=4"]
    script.write_text("\n".join([*lines, 'echo "node $NODE_RANK of $NNODES: $CUDA_VISIBLE_DEVICES"', "echo value: $1"]))
    tuner = PresetTuner(
        f"bash {script} {{x}}", ToyPreset([1, 2]), output_dir=tmp_path, study_name="s", runner=SlurmRunner(),
        listener=witness,
    )  # fmt: skip
    assert tuner.optimize() == (2.0, {"x": 2})
    for trial in witness.trials:
        assert trial.folder is not None
        logged = (trial.folder / "log.txt").read_text().splitlines()
        assert sorted(line for line in logged if line.startswith("node")) == [
            "node 0 of 2: 0,1,2,3",
            "node 1 of 2: 0,1,2,3",
        ]
        assert len(str(trial.extra["place"]).split(",")) == 2


@pytest.mark.slow
def test_the_nodes_of_the_allocation_around_a_script_are_those_of_its_trials(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    script = tmp_path / "job.sh"
    script.write_text("echo training")
    module = "zenith_tune.presets.shared.launched_gpus"
    code = f"from {module} import launched_resources; print(launched_resources('bash {script}').nodes)"
    printed = cluster.run("srun", "--nodes=3", "--ntasks-per-node=1", sys.executable, "-c", code)
    assert printed.split() == ["3"] * 3
