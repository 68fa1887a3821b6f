from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.layouts.specs import DEEPSEEK_V3, LLAMA_405B, MIXTRAL
from tests.presets.targets import target
from zenith_tune.errors import UsageError
from zenith_tune.presets.emission import Target
from zenith_tune.presets.megatron.emit import emit_megatron, megatron_flags, model_flags, needs_one_connection

# The flags of Megatron-LM main of 2026-08 that change speed or memory, as far as a layout sets them.
KNOWN_FLAGS = {
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--context-parallel-size",
    "--sequence-parallel",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
    "--num-virtual-stages-per-pipeline-rank",
    "--pipeline-model-parallel-layout",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--micro-batch-size",
    "--global-batch-size",
    "--seq-length",
    "--recompute-granularity",
    "--recompute-method",
    "--recompute-num-layers",
    "--overlap-grad-reduce",
    "--overlap-param-gather",
    "--use-distributed-optimizer",
    "--attention-backend",
    "--moe-token-dispatcher-type",
    "--moe-enable-deepep",
    "--moe-grouped-gemm",
    "--bf16",
}


def test_a_layout_of_many_sizes_sets_all_of_its_flags() -> None:
    at = target(tp=8, pp=4, vp=5, zero=1, sequence_parallel=True, recompute="full/block", recompute_layers=2)
    flags = megatron_flags(at)
    assert len(flags) == len({*flags}) and {*flags} == {
        "--tensor-model-parallel-size 8",
        "--pipeline-model-parallel-size 4",
        "--context-parallel-size 1",
        "--num-virtual-stages-per-pipeline-rank 5",
        "--micro-batch-size 1",
        "--global-batch-size 512",
        "--sequence-parallel",
        "--use-distributed-optimizer",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--attention-backend flash",
        "--recompute-granularity full",
        "--recompute-method block",
        "--recompute-num-layers 2",
        "--seq-length 8192",
        "--bf16",
    }


def test_selective_recomputation_is_given_neither_method_nor_layers() -> None:
    flags = megatron_flags(target(tp=8, recompute="selective"))
    assert "--recompute-granularity selective" in flags
    assert not any("recompute-method" in flag or "num-layers" in flag for flag in flags)


def test_no_recomputation_is_no_flag() -> None:
    assert not any("recompute" in flag for flag in megatron_flags(target(tp=8)))


def test_the_split_of_405b_over_sixteen_stages_is_accounted() -> None:
    flags = megatron_flags(target(model=LLAMA_405B, cluster="h100x2048", tp=8, pp=16))
    assert "--account-for-embedding-in-pipeline-split" in flags and "--account-for-loss-in-pipeline-split" in flags
    assert not any("account" in flag for flag in megatron_flags(target(tp=8, pp=4)))


def test_the_pipeline_of_deepseek_v3_is_laid_out_in_place_of_virtual_stages() -> None:
    at = target(model=DEEPSEEK_V3, cluster="h100x2048", pp=4, vp=4, ep=64)
    flags = megatron_flags(at)
    assert "--pipeline-model-parallel-layout 'Et*3|(t*4|)*14,t*2mL'" in flags
    assert not any("virtual" in flag or "account" in flag for flag in flags)
    assert "--mtp-num-layers 1" in model_flags(at), "the layout has an m"


def test_experts_always_say_their_tensor_size() -> None:
    flags = megatron_flags(target(model=MIXTRAL, tp=4, ep=8, sequence_parallel=True))
    assert "--expert-tensor-parallel-size 1" in flags and "--expert-model-parallel-size 8" in flags
    assert not any("expert" in flag for flag in megatron_flags(target(tp=8)))


def test_the_dispatcher_that_was_planned_for_is_set() -> None:
    plain = megatron_flags(target(model=MIXTRAL, cluster="h100x8", ep=8))
    fused = megatron_flags(target(model=MIXTRAL, cluster="h100x8", ep=8, dispatcher="flex"))
    assert "--moe-token-dispatcher-type alltoall" in plain and "--moe-enable-deepep" not in plain
    assert "--moe-token-dispatcher-type flex" in fused and "--moe-enable-deepep" in fused


def test_no_flag_is_one_that_megatron_does_not_know() -> None:
    layouts = [
        target(tp=8, pp=4, vp=5, zero=1, sequence_parallel=True, recompute="full/block", recompute_layers=2),
        target(model=LLAMA_405B, cluster="h100x2048", tp=8, pp=16, cp=2, flash_attention=False),
        target(model=MIXTRAL, tp=4, ep=8, etp=1, zero=1, sequence_parallel=True, recompute="selective"),
        target(model=DEEPSEEK_V3, cluster="h100x2048", pp=8, vp=4, ep=64),
    ]
    assert {flag.split()[0] for at in layouts for flag in megatron_flags(at)} <= KNOWN_FLAGS


@pytest.mark.parametrize(
    ("at", "needed"),
    [
        (target(tp=2), True),
        (target(cp=2), True),
        (target(pp=2), True),
        (target(cluster="b200x64", tp=2), False),
        (target(cluster="gb200x64", tp=2), False),
    ],
)
def test_one_connection_is_set_where_megatron_asks_for_it(at: Target, needed: bool) -> None:
    assert needs_one_connection(at) is needed
    assert ("CUDA_DEVICE_MAX_CONNECTIONS=1" in emit_megatron(at).text) is needed


def printed(at: Target, folder: Path, arguments: Sequence[str] = ("--data-path", "my data"), **variables: str) -> str:
    """Run a script with a torchrun that prints what it is given."""
    emission = emit_megatron(at)
    (folder / emission.file_name).write_text(emission.text)
    (folder / "torchrun").write_text('#!/bin/sh\necho "$CUDA_DEVICE_MAX_CONNECTIONS" "$@"\n')
    (folder / "torchrun").chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "MASTER_ADDR": "here", **variables}
    command = ["bash", emission.file_name, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def test_the_script_runs_and_passes_on_what_it_is_given(tmp_path: Path) -> None:
    shown = printed(target(cluster="h100x8", tp=8, sequence_parallel=True), tmp_path)
    assert shown.startswith("1 --nproc-per-node 8 --nnodes 1 pretrain_gpt.py --num-layers 80 --hidden-size 8192")
    assert " --tensor-model-parallel-size 8 " in shown and "--mock-data" not in shown
    assert shown.rstrip().endswith(" --data-path my data"), "what is given has the last word"


def test_the_shell_leaves_a_layout_as_it_is(tmp_path: Path) -> None:
    shown = printed(target(model=DEEPSEEK_V3, cluster="h100x2048", pp=16, ep=64), tmp_path)
    assert " --pipeline-model-parallel-layout Et*3|(t*4|)*14,t*2mL --expert" in shown


def test_a_script_without_data_trains_on_mock_data(tmp_path: Path) -> None:
    shown = printed(target(cluster="h100x8", tp=8), tmp_path, [])
    assert "--mock-data" in shown and "--tokenizer-type NullTokenizer" in shown
    assert "--mock-data" not in printed(target(cluster="h100x8", tp=8), tmp_path, [], DATA="--data-path x")


def test_a_layout_that_is_given_takes_the_place_of_the_scripts_own(tmp_path: Path) -> None:
    at = target(cluster="h100x8", pp=2, recompute="full/uniform", recompute_layers=1)
    shown = printed(at, tmp_path, ["--tensor-model-parallel-size", "8"], LAYOUT="")
    assert "--recompute" not in shown and "--pipeline-model-parallel-size" not in shown
    assert "--recompute-granularity full" in printed(at, tmp_path, [])


@pytest.mark.parametrize(
    ("precision", "flags"),
    [
        ("fp32", set()),
        ("fp16", {"--fp16"}),
        ("fp8", {"--bf16", "--fp8-format hybrid", "--fp8-recipe tensorwise"}),
        ("mxfp8", {"--bf16", "--fp8-format hybrid", "--fp8-recipe mxfp8"}),
        ("nvfp4", {"--bf16", "--fp4-format e2m1"}),
    ],
)
def test_every_precision_has_its_flags(precision: str, flags: set[str]) -> None:
    shown = megatron_flags(target(tp=8, precision=precision))
    assert {flag for flag in shown if re.search(r"--(bf|fp)\d", flag)} == flags


def test_weights_that_are_sharded_are_refused() -> None:
    with pytest.raises(UsageError, match=r"zero 1\b.*DP64 Z3 mbs1.*zero 3\b"):
        emit_megatron(target(zero=3))


def test_the_local_layers_are_asked_for_where_they_were_planned() -> None:
    assert "--transformer-impl local" in model_flags(target(framework="megatron-local"))
    assert not any("transformer-impl" in flag for flag in model_flags(target()))
