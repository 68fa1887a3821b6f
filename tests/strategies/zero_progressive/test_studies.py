"""Whole studies of a stand-in for a DeepSpeed job: every trial is a real process with its own configuration."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.strategies.zero_progressive.launched import put_launcher_on_path, tune, write_config
from tests.study_tools import Witness
from zenith_tune import Outcome, PresetTuner
from zenith_tune.presets.deepspeed.preset import DeepSpeedPreset

CONFIG: dict[str, Any] = {"train_batch_size": 64, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
COMMAND = "deepspeed --num_gpus 2 train.py --deepspeed_config ds.json"
# One billion parameters: 18.6 GiB of states at stage 0, 11.2 at stage 1; a sample takes one GiB.
TIGHT = f"{COMMAND} --gpu_gib 24"


@pytest.fixture(autouse=True)
def _launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_launcher_on_path(tmp_path, monkeypatch)


def outcomes(tuner: PresetTuner) -> dict[tuple[int, int], Outcome]:
    witness = tuner.listener
    assert isinstance(witness, Witness)
    return {(int(t.params["stage"]), int(t.params["mbs"])): t.outcome for t in witness.trials}


def summary(tuner: PresetTuner) -> dict[str, tuple[str, ...]]:
    witness = tuner.listener
    assert isinstance(witness, Witness) and witness.end is not None and witness.end.findings is not None
    return {row[0]: row[1:] for row in witness.end.findings.rows}


def test_the_fastest_stage_and_micro_batch_that_fit_are_found(tmp_path: Path) -> None:
    path = write_config(tmp_path, CONFIG)
    before = path.read_bytes()
    tuner = tune(tmp_path, TIGHT)
    value, params = tuner.optimize()
    assert params == {"stage": 1, "mbs": 8}
    assert value == pytest.approx(64 / (4 * 0.09 + 0.001), rel=0.002)
    assert outcomes(tuner)[(0, 8)] is Outcome.OOM and outcomes(tuner)[(0, 4)] is Outcome.OK
    assert summary(tuner)["stage 0"][2:4] == ("4", "4")
    assert "(oom)" in summary(tuner)["stage 3"][-1]
    assert path.read_bytes() == before


def test_each_trial_ran_with_the_configuration_in_its_own_folder(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    tuner = tune(tmp_path, TIGHT)
    tuner.optimize()
    witness = tuner.listener
    assert isinstance(witness, Witness)
    for trial in witness.trials:
        assert trial.folder is not None and str(trial.folder / "ds_config.json") in trial.command
        config = json.loads((trial.folder / "ds_config.json").read_text())
        assert config["train_batch_size"] == 64
        assert config["zero_optimization"]["stage"] == trial.params["stage"]


def test_memory_measured_in_the_profiling_run_and_arithmetic_save_runs(tmp_path: Path) -> None:
    write_config(tmp_path, {**CONFIG, "train_batch_size": 512})
    job = "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json"
    more = "--params_billion 8.03 --gpu_gib 77 --activation_gib 9"
    tuner = tune(tmp_path, f"{job} {more}", {"model": "llama3-8b", "seq": 2048, "cluster": "h100x8"})
    _, params = tuner.optimize()
    assert params == {"stage": 2, "mbs": 4}
    assert "(2 + 2 + 16) bytes" in summary(tuner)["stage 0"][-1] and summary(tuner)["stage 0"][0] == "0"
    assert "activations measured" in summary(tuner)["stage 3"][-1] and summary(tuner)["stage 3"][0] == "0"
    assert len(outcomes(tuner)) <= 4


def test_guided_tunes_the_same_preset(tmp_path: Path) -> None:
    write_config(tmp_path, {**CONFIG, "train_batch_size": 512})
    job = "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json"
    more = "--params_billion 8.03 --gpu_gib 77 --activation_gib 9"
    known = {"model": "llama3-8b", "seq": 2048, "cluster": "h100x8"}
    _, params = tune(tmp_path, f"{job} {more}", known, strategy="guided").optimize()
    assert params == {"stage": 2, "mbs": 4}


def test_the_trainers_arguments_and_its_json_never_disagree(tmp_path: Path) -> None:
    auto = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
    write_config(tmp_path, {**CONFIG, **auto, "gradient_accumulation_steps": 16})
    job = "deepspeed --num_gpus 2 run_clm.py --deepspeed ds.json --output_dir out --per_device_train_batch_size 2"
    tuner = tune(tmp_path, f"{job} --gradient_accumulation_steps 16 --gpu_gib 24")
    value, params = tuner.optimize()
    assert params == {"stage": 1, "mbs": 8}
    assert value == pytest.approx(64 / (4 * 0.09 + 0.001), rel=0.002), "of steady steps, not of the whole run"
    assert set(outcomes(tuner).values()) == {Outcome.OK, Outcome.OOM}


def test_checkpointing_is_switched_where_it_pays(tmp_path: Path) -> None:
    write_config(tmp_path, {"zero_optimization": {"stage": 2}, "train_batch_size": "auto"})
    job = "deepspeed --num_gpus 2 run_clm.py --deepspeed ds.json --output_dir out --per_device_train_batch_size 16"
    _, params = tune(tmp_path, f"{job} --gpu_gib 14 --activation_gib 3", {"search": "mbs+checkpointing"}).optimize()
    assert params == {"stage": 2, "mbs": 4, "checkpointing": True}


def test_lists_in_the_json_are_searched(tmp_path: Path) -> None:
    write_config(tmp_path, {**CONFIG, "zero_optimization": {"stage": [2, 3], "overlap_comm": [False, True]}})
    _, params = tune(tmp_path, TIGHT).optimize()
    assert params == {"stage": 2, "mbs": 8, "overlap_comm": True}


def test_a_stage_that_crashes_is_an_error_and_the_study_continues(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    tuner = tune(tmp_path, f"{TIGHT} --crash_stage 0")
    _, params = tuner.optimize()
    assert params == {"stage": 1, "mbs": 8}
    assert outcomes(tuner)[(0, 1)] is Outcome.ERROR
    assert "stage 0 of this stand-in is broken" in summary(tuner)["stage 0"][-1]


def test_a_stage_that_hangs_is_ended_by_the_timeout(tmp_path: Path) -> None:
    write_config(tmp_path, {**CONFIG, "zero_optimization": {"stage": [0, 1]}, "train_micro_batch_size_per_gpu": [1, 2]})
    tuner = tune(tmp_path, f"{TIGHT} --hang_stage 0", timeout=3.0)
    _, params = tuner.optimize()
    assert params == {"stage": 1, "mbs": 2}
    assert outcomes(tuner)[(0, 1)] is Outcome.TIMEOUT


def test_harmless_words_on_standard_error_fail_nothing(tmp_path: Path) -> None:
    write_config(tmp_path, {**CONFIG, "zero_optimization": {"stage": [0]}})
    tuner = tune(tmp_path, f"{COMMAND} --gpu_gib 99")
    tuner.optimize()
    assert set(outcomes(tuner).values()) == {Outcome.OK}
    logs = [path.read_text() for path in (tmp_path / "out").rglob("log.txt")]
    assert logs and all("0 errors so far" in log for log in logs)


def test_results_that_another_tuner_left_are_not_read_and_model_info_does_no_harm(tmp_path: Path) -> None:
    left = tmp_path / "autotuning_results" / "z0_gas1_tmbspg1" / "metrics.json"
    left.parent.mkdir(parents=True)
    left.write_text('{"throughput": 1e9, "latency": 1e-9}')
    section = {"enabled": True, "model_info": {"num_params": 1_000_000_000, "hidden_size": 64}, "overwrite": False}
    write_config(tmp_path, {**CONFIG, "autotuning": section})
    value, params = tune(tmp_path, TIGHT).optimize()
    assert params == {"stage": 1, "mbs": 8} and value is not None and value < 1000
    assert left.read_text() == '{"throughput": 1e9, "latency": 1e-9}'


def test_neither_ssh_nor_pdsh_is_needed(tmp_path: Path) -> None:
    for name in ("ssh", "pdsh", "pkill"):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\necho {name} > {tmp_path}/called\nexit 255\n")
        program.chmod(0o755)
    write_config(tmp_path, {**CONFIG, "zero_optimization": {"stage": [0, 1]}})
    assert tune(tmp_path, TIGHT).optimize()[1] == {"stage": 1, "mbs": 8}
    assert not (tmp_path / "called").exists()


def test_a_resumed_study_runs_nothing_again(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    first = tune(tmp_path, TIGHT)
    first.optimize(n_trials=4)  # three of them to search
    second = tune(tmp_path, TIGHT, resume=True)
    assert second.optimize()[1] == {"stage": 1, "mbs": 8}
    assert len(outcomes(first)) == 3 and not set(outcomes(first)) & set(outcomes(second))


def test_the_best_configuration_trains_when_it_is_started_by_hand(tmp_path: Path) -> None:
    write_config(tmp_path, {**CONFIG, "steps_per_print": 2000, "autotuning": {"enabled": True}})
    tuner = tune(tmp_path, TIGHT)
    _, params = tuner.optimize()
    assert params is not None and isinstance(tuner.preset, DeepSpeedPreset)
    folder = tmp_path / "out" / "s"
    ran = subprocess.run(["bash", folder / "best_command.sh"], capture_output=True, text=True, check=True)
    assert "trained 12 steps at stage 1" in ran.stdout and "SamplesPerSec" not in ran.stdout
    assert json.loads((folder / "ds_config_optimal.json").read_text())["steps_per_print"] == 2000


def test_the_command_line_recognises_and_tunes_the_job(
    tmp_path: Path, zenithtune: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    write_config(tmp_path, CONFIG)
    ran = zenithtune("optimize", "-v", "--no-baseline", "--", *TIGHT.split(), env={"PATH": os.environ["PATH"]})
    assert ran.returncode == 0, ran.stderr
    assert "preset deepspeed" in ran.stdout and "ZeRO stages" in ran.stdout
    assert "best: trial 4, Z1 mbs8" in ran.stdout
    broken = zenithtune("optimize", "--", "deepspeed", "train.py", "--deepspeed", "no.json")
    assert broken.returncode == 2 and "no.json" in broken.stderr and len(broken.stderr.splitlines()) == 1
