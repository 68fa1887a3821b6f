"""A whole study of a program that reads a YAML of nanotron and prints its lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from tests.presets.nanotron.test_preset import CONFIG
from zenith_tune import PresetTuner

PROGRAM = """
import sys, time, yaml
config = yaml.safe_load(open(sys.argv[sys.argv.index("--config-file") + 1]))
tokens = config["tokens"]
assert tokens["train_steps"] == 10, "a measured run is short"
for step in range(1, 11):
    time.sleep(0.01)
    print(
        f"01/25/2024 15:26:17 [INFO|DP=0|PP=0|TP=0]: iteration: {step} / 10 | consumed_tokens: 262K"
        f" | time_per_iteration_ms: {4 / tokens['micro_batch_size']:.3g}K | tokens_per_sec: 194K"
        " | tokens_per_sec_per_gpu: 24.2K | global_batch_size: 64 | lm_loss: 11.9 | lr: 0.0001", flush=True)
"""


@pytest.mark.slow
def test_a_study_leaves_a_copy_of_the_file_that_differs_in_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run_train.py").write_text(PROGRAM)
    own = CONFIG | {"parallelism": CONFIG["parallelism"] | {"tp": 1, "pp": 1}}
    (tmp_path / "llama.yaml").write_text(yaml.safe_dump(own))
    command = f"{sys.executable} run_train.py --config-file llama.yaml"
    PresetTuner(
        command,
        preset="nanotron",
        args={"search": "mbs", "mbs_max": 4, "steps": 10, "levers": "none"},
        output_dir=tmp_path / "out",
        study_name="s",
        strategy="grid",
    ).optimize()
    folder = tmp_path / "out" / "s"
    trials = json.loads((folder / "study.json").read_text())["trials"]
    assert {trial["outcome"] for trial in trials} == {"ok"}
    best = yaml.safe_load((folder / "llama.yaml").read_text())
    assert best["tokens"] == CONFIG["tokens"] | {"micro_batch_size": 4, "batch_accumulation_per_replica": 16}
    assert {name: value for name, value in best.items() if name != "tokens"} == {
        name: value for name, value in own.items() if name != "tokens"
    }
    assert str(folder / "llama.yaml") in (folder / "best_command.sh").read_text()
    assert yaml.safe_load((tmp_path / "llama.yaml").read_text()) == own
