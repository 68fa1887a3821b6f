"""What a command and its JSON may not say: refused in one line before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.presets.deepspeed.jobs import PLAIN, bound, command, point, write
from zenith_tune.errors import UsageError


@pytest.mark.parametrize(
    "option", ["x 1; touch PWNED; echo", "--a b", "--a\n", "$(id)", "--a=1", "", "--", "---a", "--a'", 3, None]
)
def test_what_is_no_name_of_an_option_never_gets_into_a_command(tmp_path: Path, option: Any) -> None:
    section = {"arg_mappings": {"train_micro_batch_size_per_gpu": option}}
    path = write(tmp_path, {**PLAIN, "autotuning": section})
    with pytest.raises(UsageError, match=r"arg_mappings.*--batch_size") as error:
        bound(command(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("option", ["--batch_size", "batch_size", "--batch-size", "--b2"])
def test_names_of_options_are_taken_with_hyphens_in_front_or_without(tmp_path: Path, option: str) -> None:
    section = {"arg_mappings": {"train_micro_batch_size_per_gpu": option}}
    preset = bound(command(write(tmp_path, {**PLAIN, "autotuning": section})))
    text = preset.apply_parameters(command(tmp_path / "ds.json"), point(preset, mbs=8))
    assert text.endswith(f" --{option.lstrip('-')} 8")


def test_two_configurations_in_one_command_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN)
    text = f"deepspeed --num_gpus 4 train.py --deepspeed a.json --deepspeed_config {path}"
    with pytest.raises(UsageError, match=r"--deepspeed a\.json"):
        bound(text)
    assert bound(text.replace(" a.json", "")).get_search_space()
