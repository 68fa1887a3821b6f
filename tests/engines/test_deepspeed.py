"""DeepSpeed itself, on CPU ranks: every ZeRO stage is tuned, and what is left trains when it is started by hand.

A rank takes ten CPU seconds to load DeepSpeed: two show that a study reads a job of several, one shows the rest.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module
from tests.warm_process import warm_python

pytestmark = pytest.mark.usefixtures("deepspeed")

Tune = Callable[..., subprocess.CompletedProcess[str]]
NUM_STEPS = 8
CONFIG: dict[str, Any] = {
    "train_batch_size": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": "all"},
}
CPU_ENV = {**ENGINE_ENV, "DS_ACCELERATOR": "cpu"}


@pytest.fixture(scope="module")
def deepspeed() -> None:
    for module in ("torch", "deepspeed"):
        need_module("engines", module)


def command(config: Path, num_ranks: int, python: str) -> list[str]:
    launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    script = [str(ROOT / "examples" / "deepspeed_train.py"), "--steps", str(NUM_STEPS)]
    return [*launcher, *script, "--deepspeed_config", str(config)]


def optimize(
    zenithtune: Tune,
    tmp_path: Path,
    config: dict[str, Any],
    *options: str,
    mbs_max: int = 2,
    num_ranks: int = 1,
    python: str | None = None,
) -> tuple[Any, dict[str, Any]]:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config))
    fixed = ("--args", f"mbs_max={mbs_max}", "--output-dir", str(tmp_path / "out"), "--study-name", "s")
    env = {**CPU_ENV, "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    done = zenithtune(
        "optimize", "-v", *fixed, *options, "--", *command(path, num_ranks, python or warm_python()), env=env
    )
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    return done, study


def test_a_stage_is_trained_and_measured(zenithtune: Tune, tmp_path: Path, python: str) -> None:
    config = {**CONFIG, "zero_optimization": {"stage": [1]}, "train_micro_batch_size_per_gpu": 2}
    done, study = optimize(zenithtune, tmp_path, config, "--no-baseline", "--n-trials", "1", num_ranks=2, python=python)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (trial,) = study["trials"]
    assert (trial["outcome"], trial["parameters"]["stage"], trial["unit"]) == ("ok", 1, "samples/s")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_stage_trains_and_the_best_configuration_goes_on_by_hand(zenithtune: Tune, tmp_path: Path) -> None:
    strategy = ("--strategy", "zero-progressive", "--strategy-args", "probe=true")
    options = ("--no-baseline", "--no-early-stop", "--no-confirm", *strategy)
    done, study = optimize(zenithtune, tmp_path, CONFIG, *options, mbs_max=1)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    tried = {(trial["parameters"]["stage"], trial["outcome"]) for trial in study["trials"]}
    assert tried == {(stage, "ok") for stage in range(4)}, done.stdout[-4000:]
    assert all(trial["num_samples"] >= 3 and trial["unit"] == "samples/s" for trial in study["trials"])
    assert "ZeRO stages" in done.stdout
    best = max(study["trials"], key=lambda trial: trial["value"])
    left = json.loads((tmp_path / "out" / "s" / "ds_config_optimal.json").read_text())
    assert left["zero_optimization"]["stage"] == best["parameters"]["stage"]
    assert left["train_micro_batch_size_per_gpu"] * left["gradient_accumulation_steps"] == 8
    again = subprocess.run(
        ["bash", tmp_path / "out" / "s" / "best_command.sh"],
        env={**os.environ, **CPU_ENV},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert again.returncode == 0, again.stderr[-2000:]
    assert len(re.findall(r"^step \d+ loss", again.stdout, re.MULTILINE)) == NUM_STEPS


@pytest.mark.slow
def test_what_deepspeed_refuses_is_an_error_in_its_own_words(zenithtune: Tune, tmp_path: Path) -> None:
    config = {**CONFIG, "zero_optimization": {"stage": [0], "no_such_key": 1}}
    done, study = optimize(zenithtune, tmp_path, config, "--no-baseline", "--n-trials", "1")
    assert done.returncode == 1
    (trial,) = study["trials"]
    assert trial["outcome"] == "error" and "no_such_key" in trial["cause"]
