"""A whole study of a program that takes overrides, and prints, as Megatron-Bridge's run_recipe.py does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.presets.megatron_bridge.test_preset import changed

SCRIPT = """
import sys, time, yaml

config = yaml.safe_load(CONFIG)
for word in sys.argv[1:]:
    if "=" in word and not word.startswith("-"):
        path, _, value = word.partition("=")
        *sections, name = path.split(".")
        at = config
        for section in sections:
            at = at[section]
        assert name in at, path
        at[name] = yaml.safe_load(value)
print(yaml.safe_dump(config, default_flow_style=False), flush=True)
model = config["model"]
step_ms = 40_000 * (1 + 0.1 * model["tensor_model_parallel_size"] * model["pipeline_model_parallel_size"])
for at in range(0, 120, config["logger"]["log_interval"]):
    print(f" [now] iteration {at + 1:8d}/     120 | consumed samples: {512 * (at + 1):12d} |"
          f" elapsed time per iteration (ms): {step_ms:.1f} | learning rate: 1.0E-04 | global batch size:   512 |"
          f" lm loss: 1.0E+01 | number of skipped iterations:   0 | number of nan iterations:   0 |", flush=True)
"""


def test_a_recipe_is_planned_after_its_first_run_and_its_best_command_is_overrides(
    zenithtune: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    script = tmp_path / "run_recipe.py"
    slow = changed(model={"tensor_model_parallel_size": 8})
    script.write_text(f"CONFIG = {json.dumps(json.dumps(slow))}\n{SCRIPT}")
    command = (sys.executable, str(script), "--recipe", "llama3_8b_pretrain_config", "-tp", "8")
    # A training so long that every trial pays: the steps are printed far sooner than they say that they take.
    limits = ("--no-confirm", "--n-trials", "2", "--train-hours", "10000")
    options = ("--output-dir", str(tmp_path / "out"), "--study-name", "s", *limits)
    arguments = ("--args", "n_gpus=8,cluster=h100x8,levers=none")
    done = zenithtune("optimize", *options, *arguments, "--", *command)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    study = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    assert study["search"]["strategy"] == "guided" and "preset megatron-bridge" in done.stdout
    base, *trials = study["trials"]
    assert base["unit"] == "tokens/s" and {run["outcome"] for run in trials} == {"ok"}
    started = [path.read_text() for path in (tmp_path / "out" / "s" / "trials").glob("*/command.sh")]
    assert len(started) == len(study["trials"]) and all("logger.log_interval=1" in text for text in started)
    best = (tmp_path / "out" / "s" / "best_command.sh").read_text()
    assert "model.tensor_model_parallel_size=" in best and "train.global_batch_size=512" in best
    assert "logger" not in best and "checkpoint" not in best
