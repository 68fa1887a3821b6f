"""The hook in a real Python process, with a torch that needs no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.calibration.probe.fake_torch import CUDA, NO_CUDA, run_hooked, write_torch

STEPS = "from torch.optim import Optimizer\na = Optimizer()\nfor _ in range(3): a.step()\nprint('trained')\n"


@pytest.fixture
def torch(tmp_path: Path) -> Path:
    return write_torch(tmp_path / "site")


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return tmp_path / "steps of rank 0.jsonl"


def lines_of(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text().splitlines()]


def test_a_line_is_written_after_every_step(torch: Path, record: Path) -> None:
    done = run_hooked(STEPS, torch, record=record)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    lines = lines_of(record)
    assert len(lines) == 3
    assert [line["allocated"] for line in lines] == [11, 12, 13], "the device is asked after it has done the step"
    assert {(line["reserved"], line["device"], line["gpu"]) for line in lines} == {(20, 30, "Fake H200")}
    assert lines[0]["seconds"] < lines[1]["seconds"] < lines[2]["seconds"]


def test_steps_are_on_disk_before_the_next_begins(torch: Path, record: Path) -> None:
    program = f"{STEPS}import os\nos._exit(9)\n"
    assert run_hooked(program, torch, record=record).returncode == 9
    assert len(lines_of(record)) == 3


def test_torch_may_be_imported_late_and_by_another_module(torch: Path, record: Path, tmp_path: Path) -> None:
    (tmp_path / "site" / "trainer.py").write_text(f"def train():\n    {STEPS.replace(chr(10), chr(10) + '    ')}\n")
    program = "import importlib, json\nimportlib.import_module('trainer').train()\n"
    assert run_hooked(program, torch, record=record).returncode == 0
    assert len(lines_of(record)) == 3


def test_two_optimizers_are_kept_apart(torch: Path, record: Path) -> None:
    program = (
        "from torch.optim import Optimizer\na, b = Optimizer(), Optimizer()\nfor _ in range(2): a.step(), b.step()"
    )
    run_hooked(program, torch, record=record)
    names = [line["optimizer"] for line in lines_of(record)]
    assert len(set(names)) == 2 and names[:2] == names[2:]


def test_without_a_gpu_the_time_is_recorded_alone(tmp_path: Path, record: Path) -> None:
    run_hooked(STEPS, write_torch(tmp_path / "site", cuda=NO_CUDA), record=record)
    assert [line.keys() for line in lines_of(record)] == [{"optimizer", "seconds"}] * 3


def test_the_users_own_sitecustomize_runs_too(torch: Path, record: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import builtins\nbuiltins.greeting = 'hello'\n")
    done = run_hooked(f"print(greeting)\n{STEPS}", own, torch, record=record)
    assert done.stdout == "hello\ntrained\n" and len(lines_of(record)) == 3


def test_a_torch_without_such_hooks_is_left_alone(tmp_path: Path, record: Path) -> None:
    torch = write_torch(tmp_path / "site", optimizer="class Optimizer:\n    def step(self): pass\n")
    done = run_hooked(STEPS, torch, record=record)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")
    assert not record.exists()


def test_a_program_without_torch_is_left_alone(record: Path) -> None:
    absent = "import sys\nsys.modules['torch'] = None\n"
    program = "import json\nprint(json.dumps(1))\ntry:\n    import torch.optim\nexcept ImportError: pass"
    done = run_hooked(absent + program, record=record)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def test_a_record_that_cannot_be_written_does_not_end_the_training(torch: Path, tmp_path: Path) -> None:
    done = run_hooked(STEPS, torch, record=tmp_path / "no such folder" / "steps.jsonl")
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_a_device_that_fails_does_not_end_the_training(tmp_path: Path, record: Path) -> None:
    broken = CUDA.replace(
        "return (70, 100)", "raise RuntimeError('CUDA error: operation not permitted when capturing')"
    )
    done = run_hooked(STEPS, write_torch(tmp_path / "site", cuda=broken), record=record)
    assert (done.returncode, done.stdout, done.stderr) == (0, "trained\n", "")


def test_a_program_that_clears_its_environment_is_still_watched(torch: Path, record: Path) -> None:
    assert run_hooked(f"import os\nos.environ.clear()\n{STEPS}", torch, record=record).returncode == 0
    assert len(lines_of(record)) == 3


SEND = """
import torch
{training}
def sent(values, src, **more):
    tensor = torch.Tensor(values, **more)
    assert torch.distributed.broadcast(tensor, src) == "handle"
    return tensor.values
print(sent([0, 0, 0], 0), sent([0, 1, 0], 0), sent([0, 0, 0], 3), sent([0, 0], 0), sent([0, 0, 0], 0, dtype="float"))
print(torch.distributed.sent)
"""


def test_the_flags_of_rank_0_are_answered_by_train_and_nothing_else_is_touched(torch: Path, record: Path) -> None:
    done = run_hooked(SEND.format(training="import megatron.training.training"), torch, record=record)
    assert done.stderr == ""
    assert done.stdout == "[1, 0, 0] [0, 1, 0] [0, 0, 0] [0, 0] [0, 0, 0]\n[0, 0, 3, 0, 0]\n"


def test_programs_that_are_not_megatron_keep_their_broadcasts(torch: Path, record: Path) -> None:
    assert run_hooked(SEND.format(training=""), torch, record=record).stdout.startswith("[0, 0, 0] ")
