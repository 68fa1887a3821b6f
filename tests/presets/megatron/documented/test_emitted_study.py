"""A layout that `plan --emit ms-swift` writes is tuned as it is: `optimize -- bash run.sh`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests.command_runs import running
from zenith_tune import PresetTuner
from zenith_tune.presets.base import recognised_preset
from zenith_tune.presets.megatron.documented.command import in_full
from zenith_tune.presets.megatron.documented.preset import MegatronPreset
from zenith_tune.shell import ParsedCommand

PLANS = {
    "dense": ("llama3-8b", "TP4 PP2 mbs1 Z1 SP selective"),
    "interleaved": ("llama3-8b", "PP4 VP2 Z1 mbs1 full/uniform1"),
    "experts": ("qwen3-30b-a3b", "EP8 Z1 mbs1 full/uniform1"),
}
MEGATRON = """\
import sys
words = sys.argv[2:]
args = {}
for name, value in zip(words[::2], words[1::2]):
    assert name.startswith("--") and "-" not in name[2:], words
    args[name[2:]] = value
pp, chunks = int(args["pipeline_model_parallel_size"]), int(args.get("virtual_pipeline_model_parallel_size", 1))
if chunks > 1 and pp == 1:
    raise ValueError("virtual_pipeline_model_parallel_size needs a pipeline")
if args.get("recompute_granularity") == "selective" and "recompute_method" in args:
    raise ValueError("recompute_method is not supported for selective")
if int(args["tensor_model_parallel_size"]) > 1 and args.get("sequence_parallel") != "true":
    raise ValueError("sequence_parallel must be true")
step_s = 1.0 / int(args["micro_batch_size"]) + int(args["tensor_model_parallel_size"]) / 10
for iteration in range(1, 7):
    print({"loss": 1.0, "iteration": f"{iteration}/6", "train_speed(s/it)": step_s}, flush=True)
"""


@pytest.fixture(params=list(PLANS))
def emitted(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Write run.sh by a plan, beside a `megatron` that stands in for the real one."""
    model, layout = PLANS[request.param]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    Path("megatron").write_text(f"#!{sys.executable}\n{MEGATRON}")
    Path("megatron").chmod(0o755)
    job = ["--model", model, "--cluster", "h200x8", "--gbs", "64", "--seq", "4096"]
    done = running("plan", capsys)(*job, "--explain", layout, "--emit", "ms-swift")
    assert done.code == 0, done.err
    Path("run.sh").write_text(done.out)
    return str(request.param)


def test_gpus_and_batch_are_read_from_the_script(emitted: str) -> None:
    assert recognised_preset("bash run.sh") == "megatron"
    tuner = PresetTuner("bash run.sh")
    preset = tuner.preset
    assert isinstance(preset, MegatronPreset)
    assert (preset.n_gpus, preset.gbs, preset.folding) == (8, 64, True)
    assert (tuner.config.resources.nodes, tuner.config.resources.gpus_per_node) == (1, 8)


@pytest.mark.parametrize("emitted", ["dense", "interleaved"], indirect=True)
def test_a_point_is_that_of_the_script_where_trials_can_have_all_of_its_layout(emitted: str) -> None:
    Path("model").mkdir()
    Path("model/config.json").write_text(json.dumps({"num_hidden_layers": 32, "num_attention_heads": 32}))
    preset = PresetTuner("bash run.sh", tune_args={"model": "./model"}).preset
    own = preset.own_point("bash run.sh")
    assert (own is None) == (emitted == "interleaved")
    assert own is None or (own["tp"], own["pp"], own["recompute_granularity"]) == (4, 2, "selective")


def test_what_the_user_says_wins(emitted: str) -> None:
    preset = PresetTuner("bash run.sh", tune_args={"gbs": "128", "folding": "false"}).preset
    assert isinstance(preset, MegatronPreset)
    assert (preset.n_gpus, preset.gbs, preset.folding) == (8, 128, False)


def test_a_command_without_a_script_tells_both_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NNODES", raising=False)
    tuner = PresetTuner("NPROC_PER_NODE=4 NNODES=2 megatron sft --global_batch_size 32 --max_length 4096")
    assert isinstance(tuner.preset, MegatronPreset)
    assert (tuner.preset.n_gpus, tuner.preset.gbs, tuner.preset.folding) == (8, 32, False)
    assert (tuner.config.resources.nodes, tuner.config.resources.gpus_per_node) == (2, 4)


def test_every_option_of_a_trial_reaches_ms_swift_and_none_of_the_old_layout_is_left(emitted: str) -> None:
    preset = PresetTuner("bash run.sh").preset
    for point in list(preset.points())[::97]:
        command = preset.apply_parameters("bash run.sh", point)
        assert preset.apply_parameters(command, point) == command
        line = ParsedCommand.of(in_full(command))
        assert line.get("--tensor-model-parallel-size") == str(point["tp"])
        assert line.get("--recompute-granularity") == point["recompute_granularity"]
        assert line.has("--recompute-method") == (point["recompute_granularity"] == "full")
        assert (line.get("--sequence-parallel") == "true") == (int(point["tp"]) > 1)
        assert not line.has("--virtual-pipeline-model-parallel-size")


def test_a_study_of_it_runs_and_ends_with_a_command(emitted: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--output-dir", "out", "--study-name", "tuned", "--n-trials", "5", "--no-confirm"]
    done = running("optimize", capsys)(*options, "--", "bash", "run.sh", "--model", "mine")
    assert done.code == 0, done.err + done.out
    study = json.loads(Path("out/tuned/study.json").read_text())
    assert study["baseline"]["outcome"] == "ok", study["baseline"]
    trials = [trial for trial in study["trials"] if not trial["is_baseline"]]
    assert len(trials) == 5 and {trial["outcome"] for trial in trials} == {"ok"}, trials
    assert {trial["unit"] for trial in trials} == {"tokens/s"}
    assert Path("out/tuned/best_command.sh").exists()


@pytest.mark.parametrize("emitted", ["dense"], indirect=True)
@pytest.mark.parametrize("command", ["bash run.sh", "LAYOUT='--seed 3' bash run.sh"])
def test_a_layout_that_the_user_gives_stays(emitted: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if command == "bash run.sh":
        monkeypatch.setenv("LAYOUT", "--seed 3")
    preset = PresetTuner(command, tune_args={"gbs": "64"}).preset
    assert preset.own_point(command) is None
    edited = preset.apply_parameters(command, next(iter(preset.points())))
    assert edited.startswith(f"{command} --") and ParsedCommand.of(in_full(edited)).get("--seed") == "3"
