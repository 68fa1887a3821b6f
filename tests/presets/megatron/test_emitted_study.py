"""A layout that `plan --emit megatron` writes is tuned as it is: `optimize -- bash run.sh`."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.command_runs import running
from tests.thoroughness import few_quick
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.layouts.layout import parse_layout
from zenith_tune.presets.base import recognised_preset
from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import find_runs

STAND_IN = Path(__file__).parents[2] / "standins" / "pretrain_gpt.py"
TORCHRUN = """#!/bin/sh
processes=$2 nodes=$4
shift 4
WORLD_SIZE=$((processes * nodes)) exec {python} "$@"
"""
PLANS = {
    "dense": ("llama3-8b", "PP4 VP3 Z1 mbs1 full/uniform1"),
    "nothing shared": ("llama3-8b", "TP4 PP2 mbs1 SP selective"),
    "experts": ("qwen3-30b-a3b", "EP8 Z1 mbs1 full/uniform1"),
}


@pytest.fixture(params=few_quick(PLANS, 2))
def emitted(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Write run.sh by a plan, beside a torchrun and a pretrain_gpt.py that stand in for the real ones."""
    model, layout = PLANS[request.param]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    shutil.copyfile(STAND_IN, "pretrain_gpt.py")
    Path("torchrun").write_text(TORCHRUN.format(python=sys.executable))
    Path("torchrun").chmod(0o755)
    job = ["--model", model, "--cluster", "h200x8", "--gbs", "64", "--seq", "4096"]
    done = running("plan", capsys)(*job, "--explain", layout, "--emit", "megatron")
    assert done.code == 0, done.err
    Path("run.sh").write_text(done.out)
    return str(request.param)


def test_the_script_is_read_as_the_layout_that_it_was_written_for(emitted: str) -> None:
    model, layout = PLANS[emitted]
    assert recognised_preset("bash run.sh") == "megatron-lm"
    preset = MegatronLmPreset(cluster="h200x8")
    preset.bind("bash run.sh")
    assert preset.subject("bash run.sh").model == load_model(model)
    own = preset.own_point("bash run.sh")
    assert own is not None and preset.explain(own) is None
    assert preset.layout(own) == parse_layout(layout, num_gpus=8, global_batch=64)


@pytest.mark.parametrize("command", ["bash run.sh", "cd . && bash run.sh 2>&1 | tee log.txt"])
def test_every_option_of_a_trial_reaches_megatron_and_no_old_one_is_left(emitted: str, command: str) -> None:
    preset = MegatronLmPreset(cluster="h200x8")
    preset.bind(command)
    for point in list(preset.points())[::37]:
        edited = preset.apply_parameters(command, point)
        assert preset.apply_parameters(edited, point) == edited
        (run,) = find_runs(edited, lambda words, at: words[at].endswith("pretrain_gpt.py")).runs
        line = ParsedCommand.from_argv(["pretrain_gpt.py", *(word for word in run.arguments if word != "$DATA")])
        assert line.get("--tensor-model-parallel-size") == str(point["tp"])
        assert line.has("--recompute-granularity") == (point["recompute"] != "none")
        assert line.has("--sequence-parallel") == preset.layout(point).sequence_parallel


def test_a_study_of_it_runs_and_ends_with_a_command(emitted: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--args", "cluster=h200x8", "--output-dir", "out", "--study-name", "tuned", "--n-trials", "3"]
    done = running("optimize", capsys)(*options, "--no-confirm", "--", "bash", "run.sh", "--standin-memory-gib", "140")
    assert done.code == 0, done.err + done.out
    study = json.loads(Path("out/tuned/study.json").read_text())
    assert study["baseline"]["outcome"] == "ok", study["baseline"]
    trials = [trial for trial in study["trials"] if not trial["is_baseline"]]
    assert trials and {trial["outcome"] for trial in trials} <= {"ok", "oom"}
    launched = Path("out/tuned/trials/0000/command.sh").read_text()
    assert ("--moe-router-force-load-balancing" in launched) == (emitted == "experts")
    assert "--moe-router-force-load-balancing" not in Path("out/tuned/best_command.sh").read_text()
