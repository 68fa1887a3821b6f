"""The examples of args."""

from __future__ import annotations

from zenith_tune.describe.megatron.args import MegatronArgs, job_from_args


def test_a_placeholder_counts_as_not_given() -> None:
    args = MegatronArgs.of(["--num-layers", "16", "--micro_batch_size={mbs}", "--bf16"])
    assert args.count("--num-layers") == 16
    assert args.count("--micro-batch-size") is None
    assert args.has("--bf16")


def test_a_job_is_read_from_its_options() -> None:
    job = job_from_args(MegatronArgs.of(["--seq-length", "4096", "--bf16", "--transformer-impl", "local"]))
    assert job.framework.name == "megatron-local"
    assert job.precision == "bf16"
