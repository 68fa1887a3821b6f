from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.engines.slurm_cluster import SlurmCluster, need_slurm, slurm_cluster
from tests.requirements import need_module
from tests.thoroughness import few_quick
from tests.warm_process import warm_python

PRETRAIN_GPT = Path(__file__).parent / "megatron_core" / "pretrain_gpt.py"
ENGINE_ENV = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",  # processes share two cores
    "TORCHDYNAMO_DISABLE": "1",  # compiling would take longer than training
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
}


@pytest.fixture(params=few_quick(["forked", "started"], 1))
def python(request: pytest.FixtureRequest) -> str:
    """Return an interpreter: one whose forks have the frameworks imported, and in `make test-all` the plain one too."""
    return warm_python() if request.param == "forked" else sys.executable


@pytest.fixture(scope="session")
def megatron_core() -> None:
    for module in ("torch", "megatron", "megatron.core"):
        need_module("engines", module)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Start four Slurm nodes for the tests of a file, whose clients and tuners then find them."""
    need_slurm()
    with slurm_cluster(tmp_path_factory.mktemp("cluster")) as started, pytest.MonkeyPatch.context() as patch:
        for name, value in started.environment.items():
            patch.setenv(name, value)
        yield started
