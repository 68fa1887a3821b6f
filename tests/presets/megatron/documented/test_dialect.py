"""The examples of dialect."""

from __future__ import annotations

from zenith_tune.presets.megatron.documented.dialect import (
    describes_dense_model,
    log_option,
    own_values,
    swift_version,
    with_underscores,
)


def test_an_option_tells_the_version_of_swift() -> None:
    assert swift_version("megatron sft --save_interval 100").major == 3


def test_the_option_of_the_log_is_that_of_its_version() -> None:
    assert log_option("megatron sft --save_steps 100") == "--logging-steps"
    assert log_option("python pretrain_gpt.py") == "--log-interval"
    assert log_option("python mine.py") is None


def test_options_are_spelled_as_swift_does() -> None:
    assert (
        with_underscores("megatron sft --micro-batch-size 2", "megatron sft", ["--micro-batch-size"])
        == "megatron sft --micro_batch_size 2"
    )


def test_own_values_are_those_of_the_program() -> None:
    assert own_values("python fake_megatron_train.py --micro-batch-size 2")["mbs"] == 2
    assert own_values("bash train.sh") == {}


def test_a_dense_model_is_described_by_options() -> None:
    assert describes_dense_model("python pretrain_gpt.py --num-layers 16 --hidden-size 2048")
    assert not describes_dense_model("bash train.sh")
