"""The examples of training files."""

from __future__ import annotations

from zenith_tune.presets.shared.training_files import find_config, path_in_training_folder, read_yaml


def test_the_deepspeed_file_is_found_in_a_command() -> None:
    config = find_config("deepspeed --num_gpus 8 train.py --deepspeed --deepspeed_config=ds.json")
    assert config is not None
    assert config.path == "ds.json"


def test_a_path_is_found_where_the_command_goes() -> None:
    assert (
        str(path_in_training_folder("cd sub && deepspeed train.py --deepspeed_config ds.json", "ds.json"))
        == "sub/ds.json"
    )


def test_yaml_is_read_with_its_comments() -> None:
    assert read_yaml("num_processes: 8  # GPUs\nfsdp_config: {fsdp_version: 2}\n") == {
        "num_processes": 8,
        "fsdp_config": {"fsdp_version": 2},
    }
