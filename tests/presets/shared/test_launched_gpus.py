"""The examples of launched gpus."""

from __future__ import annotations

from zenith_tune.presets.shared.launched_gpus import launched_resources
from zenith_tune.study.resources import Resources


def test_a_launcher_starts_on_nodes_with_gpus() -> None:
    assert launched_resources("torchrun --nnodes 2 --nproc-per-node 4 train.py") == Resources(
        nodes=2, gpus_per_node=4, avoid=()
    )


def test_a_job_on_the_cpu_takes_no_gpus() -> None:
    command = "torchrun --nproc-per-node 4 train.py"
    assert [
        launched_resources(f"{command}{rest}").gpus_per_node for rest in ("", " --use_cpu", " --use_cpu false")
    ] == [
        4,
        None,
        4,
    ]
