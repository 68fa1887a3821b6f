from __future__ import annotations

from pathlib import Path

import pytest

from zenith_tune.presets.shared.launched_gpus import SlurmRequest, launched_resources, slurm_request, started_gpus
from zenith_tune.study.resources import Resources


@pytest.fixture(autouse=True)
def outside_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_NNODES",):
        monkeypatch.delenv(name, raising=False)


def script(folder: Path, *lines: str) -> str:
    path = folder / "job.sh"
    path.write_text("\n".join(["#!/bin/bash", *lines, "srun python train.py"]))
    return f"bash {path}"


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8"], SlurmRequest(nodes=2, gpus_per_node=8)),
        (["#SBATCH -N 4", "#SBATCH --gres=gpu:h100:4"], SlurmRequest(nodes=4, gpus_per_node=4)),
        (["#SBATCH --nodes 2", "#SBATCH --ntasks-per-node=8"], SlurmRequest(nodes=2, gpus_per_node=8)),
        (["#SBATCH --gpus-per-node=h100:8", "#SBATCH --ntasks-per-node=1"], SlurmRequest(gpus_per_node=8)),
        (["# SBATCH --nodes=2", "##SBATCH --nodes=3"], SlurmRequest()),
        (["#SBATCH --nodes=$N"], SlurmRequest()),
    ],
)
def test_a_batch_scripts_lines_are_read(tmp_path: Path, lines: list[str], found: SlurmRequest) -> None:
    assert slurm_request(script(tmp_path, *lines), {}) == found


def test_the_allocation_around_a_script_tells_where_it_does_not(tmp_path: Path) -> None:
    around = {"SLURM_NNODES": "3", "SLURM_GPUS_ON_NODE": "4"}  # which several trials may share
    assert slurm_request(script(tmp_path), around) == SlurmRequest(nodes=3)
    assert slurm_request(script(tmp_path, "#SBATCH --nodes=2"), around).nodes == 2
    assert slurm_request("srun python train.py", around).nodes == 3
    assert slurm_request("python train.py", around) == SlurmRequest(), "it stays on one node"


def test_nodes_and_gpus_of_a_trial_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = script(tmp_path, "#SBATCH --nodes=2", "#SBATCH --gpus-per-node=8")
    assert started_gpus(command) == 16
    assert launched_resources(command) == Resources(nodes=2, gpus_per_node=8)
    monkeypatch.setenv("SLURM_NNODES", "4")
    assert launched_resources("torchrun --nnodes 2 --nproc-per-node 8 train.py").nodes == 2, "the command tells"
    assert launched_resources(script(tmp_path), 32) == Resources(nodes=4, gpus_per_node=8)


def test_a_file_that_cannot_be_read_asks_for_nothing(tmp_path: Path) -> None:
    assert slurm_request(f"bash {tmp_path / 'none.sh'}", {}) == SlurmRequest()
