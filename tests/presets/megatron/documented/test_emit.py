from __future__ import annotations

import pytest

from tests.layouts.specs import DEEPSEEK_V3, LLAMA_405B, MIXTRAL
from tests.presets.targets import target
from zenith_tune.errors import UsageError
from zenith_tune.presets.megatron.emit import emit_ms_swift, swift_flags

# Arguments of `megatron sft` in ms-swift 4.5 that change speed or memory, as far as a layout sets them.
KNOWN_ARGUMENTS = {
    "micro_batch_size",
    "global_batch_size",
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "sequence_parallel",
    "virtual_pipeline_model_parallel_size",
    "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "use_distributed_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "attention_backend",
    "moe_grouped_gemm",
    "moe_token_dispatcher_type",
    "max_length",
    "torch_dtype",
    "fp8_format",
    "fp8_recipe",
    "fp4_format",
}


def test_every_switch_takes_a_value() -> None:
    flags = swift_flags(target(tp=2, zero=1, sequence_parallel=True))
    assert "--sequence_parallel true" in flags
    assert "--use_distributed_optimizer true" in flags
    assert all(len(flag.split()) == 2 for flag in flags)


def test_the_virtual_pipeline_is_called_by_its_size() -> None:
    flags = swift_flags(target(tp=2, pp=4, vp=5))
    assert "--virtual_pipeline_model_parallel_size 5" in flags
    assert not any("num_virtual_stages" in flag for flag in flags)


def test_a_laid_out_pipeline_keeps_its_capitals_and_gets_no_size_besides() -> None:
    at = target(model=DEEPSEEK_V3, cluster="h100x2048", pp=8, vp=4, ep=64)
    assert "--pipeline_model_parallel_layout 'Et|(t*2|)*29,t|tmL'" in swift_flags(at)
    assert not any("virtual" in flag for flag in swift_flags(at))
    assert any("--mtp_num_layers 1" in note for note in emit_ms_swift(at).notes)


def test_what_ms_swift_does_by_default_is_switched_off_where_the_layout_does_not() -> None:
    flags = swift_flags(target(tp=2))
    assert "--recompute_granularity none" in flags, "its default is selective"
    assert "--use_distributed_optimizer false" in flags, "its default is true"


def test_no_argument_is_one_that_ms_swift_does_not_know() -> None:
    layouts = [
        target(tp=8, pp=4, vp=5, zero=1, sequence_parallel=True, recompute="full/block", recompute_layers=2),
        target(model=LLAMA_405B, cluster="h100x2048", tp=8, pp=16, cp=2),
        target(model=MIXTRAL, tp=4, ep=8, zero=1, sequence_parallel=True, recompute="selective"),
        target(model=DEEPSEEK_V3, cluster="h100x2048", pp=8, vp=4, ep=64),
        target(tp=8, precision="fp8"),
        target(tp=8, precision="nvfp4"),
    ]
    assert {flag.split()[0].removeprefix("--") for at in layouts for flag in swift_flags(at)} <= KNOWN_ARGUMENTS


def test_the_launcher_gets_nodes_and_gpus() -> None:
    assert "NPROC_PER_NODE=8 NNODES=8 megatron sft" in emit_ms_swift(target(tp=8)).text
    assert "NPROC_PER_NODE=4 NNODES=1 megatron sft" in emit_ms_swift(target(cluster="h100x4", tp=4)).text


@pytest.mark.parametrize(
    ("precision", "flags"),
    [
        ("bf16", ["--torch_dtype bfloat16"]),
        ("fp16", ["--torch_dtype float16"]),
        ("fp32", ["--torch_dtype float32"]),
        ("mxfp8", ["--torch_dtype bfloat16", "--fp8_format hybrid", "--fp8_recipe mxfp8"]),
        ("nvfp4", ["--torch_dtype bfloat16", "--fp4_format e2m1"]),
    ],
)
def test_no_precision_is_lost(precision: str, flags: list[str]) -> None:
    assert swift_flags(target(tp=8, precision=precision))[-len(flags) :] == flags


def test_weights_that_are_sharded_are_refused() -> None:
    with pytest.raises(UsageError, match="has zero 2"):
        emit_ms_swift(target(zero=2))
