"""The examples of command."""

from __future__ import annotations

from zenith_tune.presets.deepspeed.command import without_tuning


def test_a_command_is_left_without_deepspeeds_own_tuner() -> None:
    assert (
        without_tuning("deepspeed --autotuning run --num_gpus 8 train.py --deepspeed_config ds.json")
        == "deepspeed --num_gpus 8 train.py --deepspeed_config ds.json"
    )
