"""The section `autotuning` and the launcher's option of that name: obeyed, or left out with the reason."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.mentions import mentions
from tests.presets.deepspeed.jobs import PLAIN, TRAINER, bound, command, config_of, point, trainer_command, write
from tests.strategies.zero_progressive.launched import put_launcher_on_path, tune, write_config
from zenith_tune.errors import UsageError
from zenith_tune.presets.deepspeed.autotuning import LEFT_OUT
from zenith_tune.presets.deepspeed.preset import RESULT_CONFIG

DOCUMENTED = {
    "enabled": True,
    "results_dir": "results",
    "exps_dir": "exps",
    "overwrite": False,
    "metric": "throughput",
    "metric_path": "m.json",
    "start_profile_step": 3,
    "end_profile_step": 5,
    "fast": True,
    "max_train_batch_size": 64,
    "min_train_batch_size": 1,
    "num_tuning_micro_batch_sizes": 3,
    "max_train_micro_batch_size_per_gpu": 16,
    "min_train_micro_batch_size_per_gpu": 1,
    "tuner_type": "model_based",
    "tuner_early_stopping": 5,
    "tuner_num_trials": 50,
    "mp_size": 1,
    "arg_mappings": {"train_micro_batch_size_per_gpu": "--batch_size"},
    "model_info": {"profile": True},
    "model_info_path": "info.json",
}


def with_section(folder: Path, section: Any, **more: Any) -> str:
    return command(write(folder, {**PLAIN, **more, "autotuning": section}))


def test_every_documented_key_is_obeyed_or_named_in_one_note(tmp_path: Path) -> None:
    text = with_section(tmp_path, {**DOCUMENTED, "start_step": 1})
    (note,) = (note for note in bound(text).notes(text) if "no effect" in note)
    assert mentions(note, *LEFT_OUT, "start_step")
    assert not any(re.search(rf"\b{key}\b", note) for key in DOCUMENTED.keys() - LEFT_OUT.keys())


@pytest.mark.parametrize(
    "section",
    [
        5,
        [],
        {"metric": "speed"},
        {"metric": 3},
        {"tuner_type": "foo"},
        {"enabled": "yes"},
        {"fast": 1},
        {"tuner_num_trials": 0},
        {"max_train_batch_size": "8"},
        {"max_train_batch_size": [8]},
        {"end_profile_step": 2.5},
        {"results_dir": ""},
        {"exps_dir": 1},
        {"max_train_batch_size": 3},
        {"min_train_batch_size": 65, "max_train_batch_size": 67},
    ],
)
def test_a_wrong_value_is_one_line(tmp_path: Path, section: Any) -> None:
    with pytest.raises(UsageError, match="autotuning") as error:
        bound(with_section(tmp_path, section))
    assert "\n" not in str(error.value)


def test_the_metric_is_written_as_deepspeeds_documentation_does(tmp_path: Path) -> None:
    preset = bound(with_section(tmp_path, {"metric": "FLOPS"}), model="llama3-8b", seq=2048, cluster="h100x4")
    assert "flops" in preset.evaluator().describe()


def test_a_section_that_is_switched_off_has_no_effect(tmp_path: Path) -> None:
    text = with_section(tmp_path, {**DOCUMENTED, "enabled": False, "max_train_micro_batch_size_per_gpu": 2})
    preset = bound(text)
    assert preset.get_search_space()["mbs"].grid(9) == [1, 2, 4, 8, 16] and preset.default_trials() is None
    assert any("not enabled" in note for note in preset.notes(text))
    assert bound(text.replace("deepspeed ", "deepspeed --autotuning tune ", 1)).default_trials() == 50


@pytest.mark.parametrize(
    ("limits", "batch", "own"),
    [
        ({"max_train_batch_size": 16}, 16, 4),
        ({"max_train_batch_size": 18}, 16, 4),
        ({"min_train_batch_size": 100}, 100, 5),
        ({"min_train_batch_size": 8, "max_train_batch_size": 64}, 64, 8),
    ],
)
def test_the_global_batch_is_within_the_limits(tmp_path: Path, limits: dict[str, int], batch: int, own: int) -> None:
    text = with_section(tmp_path, limits, train_micro_batch_size_per_gpu=8)
    preset = bound(text)
    assert config_of(preset)["train_batch_size"] == batch
    (first,) = preset.baseline_files().values()
    config = json.loads(first)
    assert (config["train_batch_size"], config["train_micro_batch_size_per_gpu"]) == (batch, own) or batch == 64
    assert preset.own_point(text) == {"stage": 1, "mbs": own}
    assert any("the global batch is" in note for note in preset.notes(text)) == (batch != 64)


def test_the_arguments_of_a_trainer_follow_the_limits(tmp_path: Path) -> None:
    text = trainer_command(write(tmp_path, {**TRAINER, "autotuning": {"max_train_batch_size": 8}}))
    preset = bound(text)
    first = preset.baseline_command(text)
    assert "--per_device_train_batch_size 2 --gradient_accumulation_steps 1" in first
    assert json.loads(*preset.baseline_files().values())["train_batch_size"] == "auto"


@pytest.mark.parametrize("asked", ["--autotuning tune", "--autotuning=run"])
def test_the_launchers_own_tuner_runs_in_no_trial(tmp_path: Path, asked: str) -> None:
    text = command(write(tmp_path, PLAIN), launcher=f"deepspeed {asked} --num_gpus 4")
    preset = bound(text)
    for written in (
        preset.apply_parameters(text, point(preset, mbs=4)),
        preset.baseline_command(text),
        preset.result_command(text, point(preset, mbs=4), tmp_path),
    ):
        assert written.startswith("deepspeed --num_gpus 4 train.py")
    assert preset.asked_tuning(text) in asked and preset.asked_tuning(preset.baseline_command(text)) == ""


CONFIG: dict[str, Any] = {"train_batch_size": 16, "bf16": {"enabled": True}, "zero_optimization": {"stage": [0, 1]}}


def test_deepspeeds_own_files_are_left_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_launcher_on_path(tmp_path, monkeypatch)
    write_config(tmp_path, {**CONFIG, "autotuning": {"enabled": True, "results_dir": "results"}})
    tune(tmp_path, "deepspeed --num_gpus 2 train.py --deepspeed_config ds.json --gpu_gib 24").optimize()
    folder = tmp_path / "results"
    assert {path.name for path in folder.iterdir()} == {RESULT_CONFIG, "cmd_optimal.txt", "summary.txt"}
    lines = (folder / "summary.txt").read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    assert rows[0] == ["tuning_space", "num_experiments", "best_metric_val", "best_exp_name"]
    assert [row[0] for row in rows[1:]] == ["z0", "z1", "global"]
    assert rows[-1][-1] == rows[2][-1] == "z1_gas1_tmbspg8" and rows[1][-1] == "z0_gas2_tmbspg4"
    assert float(rows[-1][2]) == max(float(row[2]) for row in rows[1:])
    assert int(rows[-1][1]) == sum(int(row[1]) for row in rows[1:-1])
    ran = subprocess.run((folder / "cmd_optimal.txt").read_text(), shell=True, capture_output=True, text=True)
    assert "trained 12 steps at stage 1" in ran.stdout
    assert json.loads((folder / RESULT_CONFIG).read_text())["train_micro_batch_size_per_gpu"] == 8


def test_its_number_of_trials_is_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_launcher_on_path(tmp_path, monkeypatch)
    write_config(tmp_path, {**CONFIG, "autotuning": {"tuner_num_trials": 2}})
    tuner = tune(tmp_path, "deepspeed --num_gpus 2 train.py --deepspeed_config ds.json --gpu_gib 99")
    tuner.optimize()
    assert len(list((tmp_path / "out" / "s" / "trials").iterdir())) == 2
    assert tuner.config.with_budget(7).limits.n_trials == 7


@pytest.mark.parametrize(("asked", "trains"), [("tune", False), ("run", True)])
def test_a_study_takes_the_place_of_the_launchers_tuner(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    zenithtune: Callable[..., subprocess.CompletedProcess[str]],
    asked: str,
    trains: bool,
) -> None:
    put_launcher_on_path(tmp_path, monkeypatch)
    write_config(tmp_path, {**CONFIG, "autotuning": {"enabled": True}})
    words = f"deepspeed --autotuning {asked} --num_gpus 2 train.py --deepspeed_config ds.json --gpu_gib 24"
    ran = zenithtune("optimize", "--json", "--", *words.split(), env={"PATH": os.environ["PATH"]})
    assert ran.returncode == 0, ran.stderr
    assert ("trained 12 steps" in ran.stderr) == trains
    assert all(json.loads(line) for line in ran.stdout.splitlines())
    assert (tmp_path / "autotuning_results" / "summary.txt").is_file()
