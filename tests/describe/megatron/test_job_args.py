from __future__ import annotations

import pytest

from zenith_tune.describe.megatron.args import MegatronArgs, has_flash_attention, job_from_args
from zenith_tune.errors import UsageError


def args(options: str) -> MegatronArgs:
    return MegatronArgs.of(options.split())


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ("", "fp32"),
        ("--bf16", "bf16"),
        ("--fp16", "fp16"),
        ("--bf16 --fp8-format hybrid", "fp8"),
        ("--bf16 --fp8-format e4m3 --fp8-recipe mxfp8", "mxfp8"),
        ("--bf16 --fp8-format hybrid --fp8-recipe blockwise", "fp8"),
        ("--bf16 --fp4-format e2m1", "nvfp4"),
    ],
)
def test_the_precision_is_that_of_the_matrix_products(options: str, precision: str) -> None:
    assert job_from_args(args(f"--seq-length 4096 {options}")).precision == precision


@pytest.mark.parametrize(
    ("options", "framework", "flash"),
    [
        ("", "megatron", True),
        ("--transformer-impl transformer_engine --attention-backend fused", "megatron", True),
        ("--attention-backend unfused", "megatron", False),
        ("--attention-backend=local", "megatron", False),
        ("--transformer-impl local", "megatron-local", False),
        ("--transformer-impl local --attention-backend flash", "megatron-local", False),
    ],
)
def test_without_transformer_engine_it_is_another_framework_and_attention_is_unfused(
    options: str, framework: str, flash: bool
) -> None:
    found = args(f"--seq-length 4096 {options}")
    assert (job_from_args(found).framework.name, has_flash_attention(found)) == (framework, flash)


@pytest.mark.parametrize(
    ("kind", "dispatcher"), [("allgather", "alltoall"), ("alltoall", "alltoall"), ("flex", "flex")]
)
def test_flex_is_a_dispatcher_of_its_own(kind: str, dispatcher: str) -> None:
    found = args(f"--seq-length 4096 --moe-token-dispatcher-type {kind}")
    assert job_from_args(found).dispatcher == dispatcher
    assert job_from_args(args("--seq-length 4096")).dispatcher == "alltoall"


def test_a_command_without_a_sequence_length_is_refused() -> None:
    with pytest.raises(UsageError, match="--seq-length"):
        job_from_args(args("--bf16"))
    assert job_from_args(args("--encoder-seq-length 512")).seq_len == 512


def test_options_are_read_in_either_spelling_and_the_last_one_counts() -> None:
    found = args("--seq_length=1 --seq-length 8192")
    assert found.count("--seq-length") == 8192
    assert args("--micro-batch-size {mbs}").count("--micro-batch-size") is None
