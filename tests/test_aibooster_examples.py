"""The examples that are published for aibooster run with `zenithtune` as the program, or are listed as what cannot.

They lie in the folder `intelligence/zenith_tune` of fixstars/aibooster-examples, which AIBOOSTER_EXAMPLES names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.requirements import skip

pytestmark = pytest.mark.own_environment
VARIABLE = "AIBOOSTER_EXAMPLES"
SPEED = "throughput per GPU (TFLOP/s/GPU): "
TIME = "Total training time: ([0-9.]+)s"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def examples() -> Path:
    folder = Path(os.environ.get(VARIABLE, ""))
    if not (folder / "nocode").is_dir():
        skip("aibooster-examples", f"{VARIABLE} names no copy of the examples: {os.environ.get(VARIABLE, '')!r}")
    return folder


def study(ran: subprocess.CompletedProcess[str], folder: Path) -> dict[str, object]:
    assert ran.returncode == 0, ran.stderr
    loaded: dict[str, object] = json.loads((folder / "out" / "s" / "study.json").read_text())
    return loaded


def optimize(run: Run, folder: Path, *words: str) -> dict[str, object]:
    return study(run("optimize", "--output-dir", str(folder / "out"), "--study-name", "s", *words), folder)


def best_output(folder: Path) -> str:
    script = folder / "out" / "s" / "best_command.sh"
    return subprocess.run(["bash", script], capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_documented_megatron_example_is_tuned(examples: Path, tmp_path: Path, zenithtune: Run) -> None:
    command = [sys.executable, str(examples / "nocode" / "fake_megatron_train.py")]
    found = optimize(
        zenithtune, tmp_path, "--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--n-trials", "40", "--", *command
    )
    best, base = found["best"], found["baseline"]
    assert isinstance(best, dict) and isinstance(base, dict) and best["value"] > base["value"]
    assert best_output(tmp_path).strip() == f"{SPEED}{best['value']}"
    assert best["value"] == 96.0, "tp 1 with micro-batch 2, the most that 16 samples leave to 8 ranks, fully recomputed"


def test_the_documented_example_of_ones_own_is_tuned(examples: Path, tmp_path: Path, zenithtune: Run) -> None:
    space = ("--space", "batch-size=32,64", "--space", "num-workers=4,6", "--space", "threads=4,6")
    command = ["env", "OMP_NUM_THREADS={threads}", sys.executable, str(examples / "nocode" / "fake_train.py")]
    goal = ("--objective", TIME, "--minimize", "--no-confirm")
    found = optimize(zenithtune, tmp_path, *space, *goal, "--", *command, "--epochs", "1")
    best = found["best"]
    assert isinstance(best, dict) and best["parameters"] == {"batch_size": 64, "num_workers": 6, "threads": 6}
    assert f"time: {best['value']:.2f}s" in best_output(tmp_path)


def test_every_example_is_run_or_listed(examples: Path) -> None:
    page = (ROOT / "docs" / "compatibility.md").read_text().partition("## The examples of aibooster")[2]
    files = [path.relative_to(examples) for path in examples.rglob("*") if path.is_file()]
    assert files and [str(path) for path in files if path.name not in page] == []
