"""The launchers themselves in jobs of a real cluster without cgroups, whose first GPUs another job has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import ENGINE_ENV
from tests.engines.slurm_cluster import SlurmCluster, need_slurm, slurm_cluster
from tests.requirements import need_module
from tests.warm_process import warm_python
from zenith_tune.errors import UsageError
from zenith_tune.runners.slurm.runner import SlurmRunner
from zenith_tune.study.resources import Resources

pytestmark = pytest.mark.slow

NAMES = ("RANK", "WORLD_SIZE", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "MASTER_PORT")
TELL = f"""
import os

fields = ["rank", *(str(os.environ.get(name)) for name in {NAMES})]
os.write(1, (" ".join(fields) + "\\n").encode())  # in one piece: print mixes two ranks' lines
"""
TORCHRUN = "torch.distributed.run --nproc-per-node 1"
ON_ONE_ADDRESS = "export MASTER_ADDR=127.0.0.1"
"""The nodes are all on this machine, and their names are known to Slurm alone."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start two nodes; of the first a GPU is taken, of the second two."""
    need_slurm()
    folder = tmp_path_factory.mktemp("cluster")
    with slurm_cluster(folder, num_nodes=2) as started, pytest.MonkeyPatch.context() as patch:
        # DeepSpeed counts so many GPUs where it finds none.
        environment = {**started.environment, **ENGINE_ENV, "LOCAL_SIZE": "8", "DS_ACCELERATOR": "cpu"}
        for name, value in environment.items():
            patch.setenv(name, value)
        for node, num in (("n1", 1), ("n2", 2)):
            options = (f"--nodelist={node}", f"--gpus-per-node={num}", "--output=/dev/null", "--wrap=sleep 600")
            started.run("sbatch", "--parsable", *options)
        yield started


def printed(tmp_path: Path, runner: SlurmRunner, launcher: str) -> tuple[list[list[str]], str]:
    """Return what each rank tells, and the port of its job."""
    need_module("engines", launcher.partition(".")[0])
    script, trial = tmp_path / "tell.py", tmp_path / "trial"
    script.write_text(TELL)
    trial.mkdir()
    job = runner.submit(f"{warm_python()} -m {launcher} {script}", trial, Resources())
    assert job.wait().exit_code == 0, job.log_path.read_text()
    lines = [line.split() for line in job.log_path.read_text().splitlines()]
    port = 20000 + int(json.loads((trial / "job.json").read_text())["job"]) % 12000
    return sorted(fields[1:] for fields in lines if fields[:1] == ["rank"]), str(port)


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "launcher",
    [f"{TORCHRUN} --master-port 29611", "deepspeed.launcher.runner --num_gpus 1 --master_port 29611"],
    ids=["torchrun", "deepspeed"],
)
def test_on_one_node_a_launcher_keeps_to_the_gpus_and_port_of_its_job(tmp_path: Path, launcher: str) -> None:
    runner = SlurmRunner(gpus_per_node=1, extra="--nodelist=n2")
    ranks, port = printed(tmp_path, runner, launcher)
    assert ranks == [["0", "1", "n2", "2", port]]


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "launcher",
    [
        f"{TORCHRUN} --nnodes 2 --node-rank 0 --master-port 29611",
        "accelerate.commands.launch --num_machines 2 --num_processes 2 --multi_gpu --gpu_ids 0 --mixed_precision no",
        "deepspeed.launcher.runner --num_nodes 2 --num_gpus 1",
    ],
    ids=["torchrun", "accelerate", "deepspeed"],
)
def test_on_two_nodes_a_launcher_knows_its_rank(tmp_path: Path, launcher: str) -> None:
    runner = SlurmRunner(nodes=2, gpus_per_node=1, setup=ON_ONE_ADDRESS)
    ranks, port = printed(tmp_path, runner, launcher)
    assert ranks == [["0", "2", "n1", "1", port], ["1", "2", "n2", "2", port]]


@pytest.mark.usefixtures("cluster")
def test_what_the_command_sets_gives_way_to_what_slurm_gave(tmp_path: Path) -> None:
    runner = SlurmRunner(gpus_per_node=2, extra="--nodelist=n2")
    command = "CUDA_VISIBLE_DEVICES=0,1 MASTER_PORT=1 bash -c 'echo $CUDA_VISIBLE_DEVICES $MASTER_PORT'"
    job = runner.submit(command, tmp_path, Resources())
    assert job.wait().exit_code == 0
    gpus, port = job.log_path.read_text().split()
    assert gpus == "2,3" and int(port) >= 20000


@pytest.mark.usefixtures("cluster")
def test_a_script_that_names_its_gpus_is_refused_where_trials_share_a_node(tmp_path: Path) -> None:
    (tmp_path / "t.sh").write_text("CUDA_VISIBLE_DEVICES=0 python t.py\n")
    command, runner = f"bash {tmp_path / 't.sh'}", SlurmRunner()
    runner.prepare(Resources(gpus_per_node=8), None)
    assert runner.command_notes(command) == []
    runner.prepare(Resources(gpus_per_node=4), None)
    with pytest.raises(UsageError, match=r"t\.sh"):
        runner.submit(command, tmp_path, Resources(gpus_per_node=4))
