"""The job that a Megatron-LM command runs: sequence length, precision, kernels, and how tokens reach experts."""

from __future__ import annotations

from zenith_tune.describe.framework_catalog import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.errors import UsageError

LOCAL = "megatron-local"
UNFUSED = ("unfused", "local")
"""Values of --attention-backend that keep the scores."""


def job_from_args(args: MegatronArgs) -> JobSpec:
    """Return the job that the options describe.

    >>> job = job_from_args(MegatronArgs.of("--seq-length 4096 --bf16 --transformer-impl local".split()))
    >>> job.framework.name, job.precision
    ('megatron-local', 'bf16')
    """
    seq_len = args.count("--seq-length") or args.count("--encoder-seq-length")
    if not seq_len:
        raise UsageError("the command must tell the sequence length, but has no --seq-length: add it")
    return JobSpec(
        seq_len=seq_len,
        framework=load_framework(LOCAL if is_local(args) else "megatron"),
        precision=precision_from_args(args),
        dispatcher="flex" if args.text("--moe-token-dispatcher-type") == "flex" else "alltoall",
    )


def is_local(args: MegatronArgs) -> bool:
    """Tell whether Megatron runs without Transformer Engine."""
    return args.text("--transformer-impl") == "local"


def has_flash_attention(args: MegatronArgs) -> bool:
    """Tell whether attention is fused; without Transformer Engine, Megatron's own is not."""
    return not is_local(args) and args.text("--attention-backend") not in UNFUSED


def precision_from_args(args: MegatronArgs) -> str:
    """Return the precision of the matrix products; without an option Megatron trains in fp32."""
    if args.first("--fp4-format", "--fp4-param-gather"):
        return "nvfp4"
    if args.has("--fp8-format"):
        return "mxfp8" if args.text("--fp8-recipe") == "mxfp8" else "fp8"
    return next((kind for kind in ("bf16", "fp16") if args.has(f"--{kind}")), "fp32")
