"""Accelerate itself, on one CPU rank: a model that no argument names is planned after the first run."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.describe.fake_smi import install
from tests.engines.conftest import ENGINE_ENV
from tests.requirements import need_module
from tests.warm_process import warm_python

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("accelerate")]

Tune = Callable[..., subprocess.CompletedProcess[str]]
LOOP = """
import argparse
import torch
from accelerate import Accelerator
{imports}
parser = argparse.ArgumentParser()
parser.add_argument("--batch_size", type=int, default=2)
options = parser.parse_args()
accelerator = Accelerator()
torch.manual_seed(1)
{model}
loader = torch.utils.data.DataLoader(torch.randint(128, (128, 48)), batch_size=options.batch_size)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward({loss})
        optimizer.step()
        optimizer.zero_grad()
"""
LLAMA = LOOP.format(
    imports="from transformers import LlamaConfig, LlamaForCausalLM",
    model="model = LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=64, "
    "num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2))",
    loss="model(input_ids=batch, labels=batch).loss",
)
FROZEN = LLAMA.replace("loader = torch", "model.model.requires_grad_(False)\nloader = torch", 1)

OF_ITS_OWN = LOOP.format(
    imports="from torch import nn",
    model="layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)\n"
    "encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)\n"
    "model = nn.Sequential(nn.Embedding(128, 32), encoder, nn.Linear(32, 128))",
    loss="nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())",
)


@pytest.fixture(scope="module")
def accelerate() -> None:
    for module in ("torch", "accelerate", "transformers"):
        need_module("engines", module)


def tune(zenithtune: Tune, folder: Path, script: str) -> tuple[str, dict[str, Any]]:
    """Tune a script without an argument of ours, on what nvidia-smi calls an H100; returns the output and the study."""
    install(folder / "nvidia-smi", 'if [ "$1" = -L ]; then echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)"; fi')
    own, config = folder / "train.py", folder / "own.yaml"
    own.write_text(script)
    config.write_text("distributed_type: 'NO'\nmixed_precision: 'no'\nnum_machines: 1\nnum_processes: 1\n")
    command = [warm_python(), "-m", "accelerate.commands.launch", "--config_file", str(config), str(own)]
    env = {**ENGINE_ENV, "ACCELERATE_USE_CPU": "true", "PATH": f"{folder}:{os.environ['PATH']}"}
    options = ["--output-dir", str(folder / "out"), "--study-name", "s", "--no-confirm", "--n-trials", "1"]
    options += ["--train-hours", "10000"]  # a trial pays then, however slow the machine
    done = zenithtune("optimize", "-v", *options, "--", *command, "--batch_size", "4", env=env, timeout=500)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout, json.loads((folder / "out" / "s" / "study.json").read_text())


def test_a_llama_made_in_the_script_is_planned_after_its_first_run(zenithtune: Tune, tmp_path: Path) -> None:
    output, study = tune(zenithtune, tmp_path, LLAMA)
    assert study["search"]["strategy"] == "guided"
    assert "LlamaForCausalLM on h100x1" in output, "the layouts that are planned"
    _, trial = study["trials"]
    assert trial["outcome"] == "ok" and "predicted" in trial["why"]


def test_a_module_of_its_own_kind_is_planned_by_its_blocks(zenithtune: Tune, tmp_path: Path) -> None:
    output, study = tune(zenithtune, tmp_path, OF_ITS_OWN)
    assert study["search"]["strategy"] == "guided"
    assert "Sequential on h100x1" in output and "3 layers, hidden 32" in output
    _, trial = study["trials"]
    assert trial["outcome"] == "ok" and "predicted" in trial["why"]


def test_a_model_that_is_trained_in_part_is_planned_as_such(zenithtune: Tune, tmp_path: Path) -> None:
    output, study = tune(zenithtune, tmp_path, FROZEN)
    assert study["search"]["strategy"] == "guided"
    assert "26,784 parameters, 4,096 of them trained" in output
    _, trial = study["trials"]
    assert trial["outcome"] == "ok" and "predicted" in trial["why"]
