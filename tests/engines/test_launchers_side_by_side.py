"""The launchers themselves, beside a trial that has the first GPUs: each keeps to the GPUs and port it was given."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module
from tests.warm_process import warm_python
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.study.resources import Resources

pytestmark = pytest.mark.slow

TELL = """
import os

fields = ["rank", *(os.environ[name] for name in ("RANK", "CUDA_VISIBLE_DEVICES", "MASTER_PORT"))]
os.write(1, (" ".join(fields) + "\\n").encode())  # in one piece: print mixes two ranks' lines
"""
FILE = "distributed_type: MULTI_GPU\nnum_machines: 1\nnum_processes: 2\ngpu_ids: 0,1\nmain_process_port: 29533\n"
TWO_GPUS = Resources(gpus_per_node=2)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRunner]:
    """Return a runner whose first two GPUs of four are taken."""
    # DeepSpeed counts so many GPUs where it finds none.
    environment = {**ENGINE_ENV, "CUDA_VISIBLE_DEVICES": "0,1,2,3", "LOCAL_SIZE": "4", "DS_ACCELERATOR": "cpu"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    made = LocalRunner(grace_s=0.5)
    made.prepare(TWO_GPUS, None)
    (tmp_path / "neighbour").mkdir()
    neighbour = made.submit("sleep 300", tmp_path / "neighbour", TWO_GPUS)
    yield made
    neighbour.cancel()
    made.close()


@pytest.mark.parametrize(
    ("module", "launcher"),
    [
        ("deepspeed", "deepspeed.launcher.runner --num_gpus 2 --master_port 29533"),
        ("accelerate", "accelerate.commands.launch --gpu_ids 0,1 --config_file {file}"),
        ("torch", "torch.distributed.run --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:29533"),
    ],
)
def test_a_launcher_keeps_to_what_its_trial_was_given(
    runner: LocalRunner, module: str, launcher: str, tmp_path: Path
) -> None:
    need_module("engines", module)
    (tmp_path / "tell.py").write_text(TELL)
    (tmp_path / "own.yaml").write_text(FILE)
    (tmp_path / "trial").mkdir()
    started = f"{warm_python()} -m {launcher.format(file=tmp_path / 'own.yaml')} {tmp_path / 'tell.py'}"
    job = runner.submit(f"echo port $MASTER_PORT && {started}", tmp_path / "trial", TWO_GPUS)
    assert job.wait().exit_code == 0, job.log_path.read_text()
    lines = [line.split() for line in job.log_path.read_text().splitlines()]
    [port] = [fields[1] for fields in lines if fields[:1] == ["port"]]
    ranks = sorted(fields[1:] for fields in lines if fields[:1] == ["rank"])
    assert ranks == [["0", "2,3", port], ["1", "2,3", port]]
