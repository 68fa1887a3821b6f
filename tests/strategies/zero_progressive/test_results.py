"""What a study of a DeepSpeed job leaves: the best configuration and the command that trains with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.strategies.zero_progressive.launched import put_launcher_on_path, tune, write_config
from tests.study_tools import Witness
from zenith_tune.errors import StudyError

CONFIG: dict[str, Any] = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1, "overlap_comm": [True, False]},
    "steps_per_print": 2000,
    "autotuning": {"enabled": True},
}
COMMAND = "deepspeed --num_gpus 2 train.py --deepspeed_config ds.json --gpu_gib 24"


@pytest.fixture(autouse=True)
def _launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_launcher_on_path(tmp_path, monkeypatch)


def test_the_best_configuration_and_its_command_are_left_and_run_as_they_are(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    _, params = tune(tmp_path, COMMAND).optimize()
    assert params == {"stage": 1, "mbs": 8, "overlap_comm": True}
    folder = tmp_path / "out" / "s"
    config = json.loads((folder / "ds_config_optimal.json").read_text())
    assert config == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1, "overlap_comm": True},
        "steps_per_print": 2000,
    }
    ran = subprocess.run(["bash", folder / "best_command.sh"], capture_output=True, text=True, check=True)
    assert "trained 12 steps at stage 1" in ran.stdout


def test_a_file_with_lists_has_a_baseline_that_is_measured_as_trials_are(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    tuner = tune(tmp_path, COMMAND, baseline=True)
    tuner.optimize()
    witness = tuner.listener
    assert isinstance(witness, Witness) and witness.end is not None
    baseline, gain = witness.end.study.baseline, witness.end.study.gain
    assert baseline is not None and baseline.ok, baseline
    assert baseline.extra["speed_read_from"] == "DeepSpeed's throughput lines"
    assert gain is not None and gain == pytest.approx((16 * 0.03 + 0.001) / (4 * 0.09 + 0.001) - 1, rel=0.02)


def test_what_is_made_of_the_users_file_is_for_nobody_elses_eyes(tmp_path: Path) -> None:
    write_config(tmp_path, {**CONFIG, "wandb": {"api_key": "0123456789"}}).chmod(0o600)
    tune(tmp_path, COMMAND, baseline=True).optimize(n_trials=1)
    copies = list((tmp_path / "out").rglob("ds_config*.json"))
    assert len(copies) == 3 and all("0123456789" in path.read_text() for path in copies)
    assert {path.stat().st_mode & 0o777 for path in copies} == {0o600}


def test_the_users_own_configuration_is_left_where_it_is_the_best(tmp_path: Path) -> None:
    own = {name: value for name, value in CONFIG.items() if name != "train_micro_batch_size_per_gpu"}
    write_config(tmp_path, {**own, "zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 4})
    tuner = tune(tmp_path, COMMAND, baseline=True)
    tuner.optimize(n_trials=1)
    config = json.loads((tmp_path / "out" / "s" / "ds_config_optimal.json").read_text())
    assert config == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 4,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 1},
        "steps_per_print": 2000,
    }


def test_a_study_is_not_resumed_with_another_configuration(tmp_path: Path) -> None:
    write_config(tmp_path, CONFIG)
    tune(tmp_path, COMMAND).optimize(n_trials=1)
    tune(tmp_path, COMMAND, resume=True).optimize(n_trials=2)
    write_config(tmp_path, {**CONFIG, "gradient_clipping": 0.5})
    with pytest.raises(StudyError, match=r"ds\.json \(contents \w{12}\)"):
        tune(tmp_path, COMMAND, resume=True).optimize(n_trials=3)


def test_a_command_that_changes_the_folder_is_tuned_there(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_config(tmp_path / "sub", CONFIG)
    write_config(tmp_path, {"train_batch_size": 2})
    _, params = tune(tmp_path, f'bash -c "cd sub && {COMMAND}"').optimize(n_trials=1)
    assert params is not None and "overlap_comm" in params
    config = json.loads((tmp_path / "out" / "s" / "ds_config_optimal.json").read_text())
    assert config["train_batch_size"] == 64
