"""Scripts of the Hugging Face Trainer: its arguments and the JSON agree, and what is "auto" stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mentions import mentions
from tests.presets.deepspeed.jobs import PLAIN, TRAINER, bound, config_of, point, trainer_command, write
from zenith_tune.errors import UsageError
from zenith_tune.shell import ParsedCommand

BATCH_KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def test_arguments_follow_the_micro_batch_and_auto_stays_auto(tmp_path: Path) -> None:
    text = trainer_command(write(tmp_path, TRAINER))
    preset = bound(text)
    line = ParsedCommand.of(preset.apply_parameters(text, point(preset, stage=3, mbs=8)))
    assert (line.get("--per_device_train_batch_size"), line.get("--gradient_accumulation_steps")) == ("8", "1")
    config = config_of(preset, stage=3, mbs=8)
    assert [config[key] for key in BATCH_KEYS] == ["auto", "auto", "auto"]
    assert config["bf16"] == {"enabled": "auto"}
    assert config["zero_optimization"] == {"stage": 3, "reduce_bucket_size": "auto"}


def test_numbers_in_the_json_agree_with_the_arguments(tmp_path: Path) -> None:
    path = write(tmp_path, {**TRAINER, "train_batch_size": 32, "gradient_accumulation_steps": 4})
    text = trainer_command(path)
    preset = bound(text)
    config, line = config_of(preset, mbs=4), ParsedCommand.of(preset.apply_parameters(text, point(preset, mbs=4)))
    assert [config[key] for key in BATCH_KEYS] == [32, "auto", 2]
    assert (line.get("--per_device_train_batch_size"), line.get("--gradient_accumulation_steps")) == ("4", "2")


def test_the_global_batch_is_that_of_the_arguments_and_the_trainers_own_default(tmp_path: Path) -> None:
    path = write(tmp_path, TRAINER)
    assert mentions(bound(trainer_command(path)).evaluator().describe(), "throughput", "gbs 32")
    assert mentions(bound(trainer_command(path, "")).evaluator().describe(), "throughput", "gbs 32")
    few = bound(trainer_command(path, "--per_device_train_batch_size=1"))
    assert mentions(few.evaluator().describe(), "throughput", "gbs 4")


def test_added_arguments_are_spelled_as_the_trainer_knows_them(tmp_path: Path) -> None:
    path = write(tmp_path, TRAINER)
    text = f"deepspeed --num_gpus 4 train.py --deepspeed {path} --learning-rate 1 --lr-scheduler-type x"
    preset = bound(text)
    written = preset.apply_parameters(text, point(preset, mbs=4))
    assert "--per_device_train_batch_size 4 --gradient_accumulation_steps 2" in written


def test_precision_follows_the_arguments_where_the_json_leaves_it_to_them(tmp_path: Path) -> None:
    path = write(tmp_path, TRAINER)
    known = {"model": "llama3-8b", "seq": 2048, "cluster": "h100x4"}
    assert bound(trainer_command(path), **known).subject("").job.precision == "fp32"
    assert bound(trainer_command(path, "--bf16"), **known).subject("").job.precision == "bf16"
    assert bound(trainer_command(path, "--bf16 True"), **known).subject("").job.precision == "bf16"
    assert bound(trainer_command(path, "--bf16 False"), **known).subject("").job.precision == "fp32"


def test_model_and_sequence_are_read_from_the_arguments(tmp_path: Path) -> None:
    more = "--model_name_or_path llama3-8b --block_size 1024 --bf16"
    subject = bound(trainer_command(write(tmp_path, TRAINER), more), cluster="h100x4").subject("")
    assert (subject.model.name, subject.job.seq_len) == ("llama3-8b", 1024)


@pytest.mark.parametrize("flag", ["", "--gradient_checkpointing", "--gradient_checkpointing True"])
def test_checkpointing_is_an_argument_and_the_own_choice_comes_first(tmp_path: Path, flag: str) -> None:
    text = trainer_command(write(tmp_path, TRAINER), flag)
    preset = bound(text, search="default+checkpointing")
    assert preset.get_search_space()["checkpointing"].grid(9)[0] is bool(flag)
    for wanted in (True, False):
        line = ParsedCommand.of(preset.apply_parameters(text, point(preset, checkpointing=wanted)))
        assert line.get("--gradient_checkpointing") == str(wanted)
    layout = preset.layout(point(preset, checkpointing=True))
    assert layout.recompute == "full/uniform"


def test_checkpointing_of_a_script_that_has_no_such_argument_is_refused(tmp_path: Path) -> None:
    text = f"deepspeed --num_gpus 4 train.py --deepspeed_config {write(tmp_path, PLAIN)}"
    with pytest.raises(UsageError, match=r"checkpointing.*Trainer"):
        bound(text, search="default+checkpointing")


def test_placeholders_carry_the_values_into_a_script(tmp_path: Path) -> None:
    path = write(tmp_path, TRAINER)
    text = "MBS={mbs} GAS={gas} bash train.sh {ds_config}"
    preset = bound(text, config=str(path), n_gpus=4)
    written = preset.apply_parameters(text, point(preset, mbs=2))
    assert written == "MBS=2 GAS=4 bash train.sh {trial_folder}/ds_config.json"
