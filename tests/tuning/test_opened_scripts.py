"""Studies of scripts that have their options inside."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module
from tests.warm_process import warm_python

Tune = Callable[..., subprocess.CompletedProcess[str]]
MEGATRON = r"""#!/usr/bin/env bash
set -eu
export WORLD_SIZE=8 CUDA_DEVICE_MAX_CONNECTIONS=1
TP=4
MODEL_ARGS=(
  --num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 32
  --group-query-attention --num-query-groups 8 --vocab-size 128256 --seq-length 4096 --max-position-embeddings 4096
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear
  --untie-embeddings-and-output-weights --bf16 --use-distributed-optimizer --attention-backend flash
)
RECOMPUTE="--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -n "${WANDB:-}" ]; then RECOMPUTE="$RECOMPUTE --wandb-project mine"; fi
python $HERE/pretrain_gpt.py ${MODEL_ARGS[@]} $RECOMPUTE \
  --tensor-model-parallel-size $TP --sequence-parallel --micro-batch-size 1 --global-batch-size 32 \
  --train-iters 12 --log-interval 1 REST 2>&1 | tee $HERE/out.log
"""
TRAINER = r"""#!/bin/bash
export TOKENIZERS_PARALLELISM=false
ARGS="--output_dir own --max_steps 50 --use_cpu --report_to none"
echo start
PYTHON trainer_train.py $ARGS \
    --per_device_train_batch_size 1 --gradient_accumulation_steps 4
"""


def patched(folder: Path) -> str:
    """Return the script as the study's change makes it."""
    done = subprocess.run(
        ["patch", "-o", "-", "train.sh", "out/s/best.diff"], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("rest", ["", '"$@"'])
def test_a_megatron_script_loses_what_trials_take_away(zenithtune: Tune, tmp_path: Path, rest: str) -> None:
    text = MEGATRON.replace("REST", rest)
    (tmp_path / "train.sh").write_text(text)
    (tmp_path / "pretrain_gpt.py").write_text((ROOT / "examples" / "demo" / "pretrain_gpt.py").read_text())
    cluster = ("--cluster", str(ROOT / "examples" / "demo" / "cluster.toml"), "--args", "levers=none")
    given = ("--output-dir", "out", "--study-name", "s", "--n-trials", "2", "--no-confirm")
    done = zenithtune("optimize", *cluster, *given, "--", "bash", "train.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"patch train.sh {Path('out/s/best.diff')}" in done.stdout
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    assert [trial["outcome"] for trial in study["trials"]] == ["ok"] * 3
    best = study["best"]["parameters"]
    after = patched(tmp_path)
    assert "$RECOMPUTE \\" not in after and f"--micro-batch-size {best['mbs']}" in after and "${MODEL_ARGS[@]}" in after
    assert (tmp_path / "train.sh").read_text() == text
    assert {path.name for path in tmp_path.iterdir()} == {"train.sh", "pretrain_gpt.py", "out", "out.log"}
    best_script = tmp_path / "out" / "s" / "best_command.sh"
    own_lines = [
        line for line in text.replace("${BASH_SOURCE[0]}", "$0").splitlines() if line.startswith(("#", "HERE"))
    ]
    assert set(own_lines) <= set(best_script.read_text().splitlines()), "it reads as the user's own"
    by_hand = ["bash", str(best_script)]
    ran = subprocess.run(by_hand, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert ran.stdout.count("elapsed time per iteration") == 12
    again = zenithtune("optimize", *cluster, *given, "--resume", "--", "bash", "train.sh")
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_script_that_calls_the_trainer_is_tuned(zenithtune: Tune, tmp_path: Path) -> None:
    for module in ("torch", "accelerate", "transformers"):
        need_module("engines", module)
    (tmp_path / "train.sh").write_text(TRAINER.replace("PYTHON", warm_python()))
    (tmp_path / "trainer_train.py").write_text((ROOT / "examples" / "trainer_train.py").read_text())
    options = ("--output-dir", "out", "--study-name", "s", "--no-confirm", "--no-early-stop", "--train-hours", "10000")
    given = ("--n-trials", "1", "--args", "levers=none,steps=6,search=mbs,mbs_max=4")
    env = {**os.environ, **ENGINE_ENV}
    done = zenithtune("optimize", *options, *given, "--", "bash", "train.sh", env=env, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    assert study["preset"] == "trainer"
    base, trial = study["trials"]
    assert [run["outcome"] for run in (base, trial)] == ["ok", "ok"]
    assert f"--per_device_train_batch_size {trial['parameters']['mbs']}" in trial["command"]
    assert not (tmp_path / "own").exists()
