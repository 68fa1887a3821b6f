from __future__ import annotations

import json
from pathlib import Path

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.presets.base import recognised_preset
from zenith_tune.presets.shared.trial_hook import watched
from zenith_tune.presets.trainer.command import (
    argument_file,
    option_values,
    plain_argument,
    recognises,
    with_file,
    with_options,
)
from zenith_tune.presets.trainer.preset import TrainerPreset

NO_TRAINER = "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --output_dir out --num_train_epochs 1"


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --per_device_train_batch_size 4",
        "python3.11 train.py --output-dir=out --max-steps=10",
        "torchrun --nproc-per-node 8 run_clm.py --do_train --output_dir out",
        "python -m my.train --bf16 --logging_steps 5",
        "accelerate launch train.py --output_dir out --bf16",
        "srun bash -c 'python train.py --output_dir o --optim adamw_torch'",
        "trl sft --model_name_or_path m --dataset_name d",
        "trl dpo --config F.yaml",
    ],
)
def test_a_command_with_arguments_of_a_trainer_is_recognised(command: str) -> None:
    assert TrainerPreset.recognises(command) and recognised_preset(command) == "trainer"


@pytest.mark.parametrize(
    ("command", "preset"),
    [
        (f"accelerate launch train.py {NO_TRAINER}", "accelerate"),
        ("accelerate launch --use_fsdp --fsdp_version 2 train.py --output_dir out --bf16", "accelerate"),
        ("accelerate launch --use_deepspeed train.py --output_dir out --bf16", "accelerate"),
        ("deepspeed train.py --deepspeed ds.json --output_dir out --bf16", "deepspeed"),
        ("torchrun train.py --deepspeed ds.json --output_dir out --bf16", "deepspeed"),
        ("accelerate launch train.py --deepspeed ds.json --output_dir out --bf16", "deepspeed"),
        ("torchrun pretrain_gpt.py --num-layers 2 --bf16 --seed 1", "megatron-lm"),
    ],
)
def test_commands_of_other_presets_are_left_to_them(command: str, preset: str) -> None:
    assert recognised_preset(command) == preset


def test_a_python_program_that_says_nothing_is_tried_and_other_programs_are_not() -> None:
    for command in ("python train.py", "torchrun --nproc-per-node 2 train.py --lr 1", "python -m train"):
        assert not TrainerPreset.recognises(command) and recognised_preset(command) == "trainer"
    for command in ("true", "bash train.sh", "python -c pass", "./train"):
        with pytest.raises(UsageError):
            recognised_preset(command)


def test_options_are_replaced_in_the_form_that_they_have_and_others_are_added() -> None:
    values = {"per_device_train_batch_size": 8, "gradient_checkpointing": True, "torch_compile": False}
    text = with_options("python t.py --per-device-train-batch-size=4 --gradient_checkpointing --bf16", values)
    assert text == (
        "python t.py --per-device-train-batch-size=8 --gradient_checkpointing=true --bf16 --torch_compile=false"
    )


def test_values_are_read_from_options_and_from_the_file_of_trl(tmp_path: Path) -> None:
    config = tmp_path / "sft.yaml"
    config.write_text("per_device_train_batch_size: 2\ngradient_accumulation_steps: 16\nmodel_name_or_path: m\n")
    command = f"trl sft --config {config} --gradient_accumulation_steps 4 --bf16 --gradient_checkpointing False"
    assert option_values(command) == {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "bf16": True,
        "gradient_checkpointing": False,
    }


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_file_is_read_and_written_with_other_values(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"my args.{suffix}"
    path.write_text(json.dumps({"output_dir": "o", "per_device_train_batch_size": 4, "model": "m"}))
    command = f"torchrun train.py '{path}' > log"
    file = argument_file(command)
    assert file is not None and file.values["per_device_train_batch_size"] == 4
    copy = tmp_path / file.trial_name
    copy.write_text(file.having({"per_device_train_batch_size": 1, "gradient_checkpointing": True}))
    changed = argument_file(with_file(command, str(copy)))
    assert changed is not None and changed.values == {
        "output_dir": "o",
        "per_device_train_batch_size": 1,
        "model": "m",
        "gradient_checkpointing": True,
    }
    assert with_file(command, "x").endswith("x > log")


def test_other_files_are_none_of_a_trainer(tmp_path: Path) -> None:
    other, empty = tmp_path / "other.yaml", tmp_path / "empty.json"
    other.write_text("lr: 1\n")
    empty.write_text("")
    for name in (other, empty, tmp_path / "missing.yaml"):
        assert argument_file(f"python train.py {name}") is None


@pytest.mark.parametrize("front", ["", "srun -n 2 ", "A=1 ", "env A=1 "])
def test_the_hook_comes_first_on_the_path_once(front: str) -> None:
    text = watched(f"{front}python train.py --lr 1")
    assert "PYTHONPATH={trial_folder}/hook${PYTHONPATH:+:$PYTHONPATH} python train.py" in text
    assert watched(text) == text
    assert "PYTHONPATH={trial_folder}/hook:mine python" in watched(f"{front}PYTHONPATH=mine python train.py".lstrip())


def test_an_argument_without_a_value_is_on() -> None:
    assert [plain_argument(text) for text in ("", "False", "8", "no")] == [True, False, 8, "no"]


def test_a_trainer_is_recognised_by_its_arguments() -> None:
    assert recognises("torchrun train.py --output_dir out --bf16")
    assert not recognises("torchrun train.py --lr 1")
