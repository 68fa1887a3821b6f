"""Commands of ms-swift, and of Megatron-LM by the preset megatron, diagnosed on paper."""

from __future__ import annotations

import pytest

from tests.command_runs import Run, as_json, running
from zenith_tune.doctor.diagnosed_run import RunHints, megatron_run
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout

MODEL = "Qwen/Qwen3-30B-A3B"
SWIFT = f"NPROC_PER_NODE=8 megatron sft --model {MODEL} --max_length 4096"
SCRIPT = "torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 4096 --micro-batch-size 2 --global-batch-size 64"
H100 = ("--cluster", "h100x8")


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("NPROC_PER_NODE", "NNODES"):
        monkeypatch.delenv(name, raising=False)
    return running("doctor", capsys)


def layout_of(command: str, **args: str) -> Layout:
    return megatron_run(command, RunHints(args=args, cluster=args.pop("cluster", "h100x8"))).layout


def test_a_command_of_ms_swift_shows_its_job_and_its_defaults() -> None:
    # By ms-swift's documentation: a batch of 16 in micro-batches of 1, selective recomputation, a sharded optimizer.
    at = Layout(num_gpus=8, global_batch=16, micro_batch=1, recompute="selective", zero=1)
    assert layout_of(SWIFT) == at
    run = megatron_run(f"NNODES=2 {SWIFT}", RunHints(cluster="h100x16"))
    assert (run.layout.num_gpus, run.subject.model.name, run.subject.job.seq_len) == (16, "qwen3-30b-a3b", 4096)


def test_sizes_and_recomputation_are_those_of_the_command() -> None:
    sizes = "--tensor_model_parallel_size 2 --pipeline_model_parallel_size 2 --expert_model_parallel_size 4"
    rest = "--virtual_pipeline_model_parallel_size 2 --sequence_parallel true --micro_batch_size 4"
    full = "--recompute_granularity full --recompute_method block --recompute_num_layers 3 --global_batch_size 64"
    at = Layout(num_gpus=8, tp=2, pp=2, ep=4, vp=2, micro_batch=4, global_batch=64, zero=1, sequence_parallel=True)
    found = layout_of(f"{SWIFT} {sizes} {rest} {full}")
    assert (found.recompute, found.recompute_layers) == ("full/block", 3)
    assert layout_of(f"{SWIFT} {sizes} {rest} --global_batch_size 64 --recompute_granularity none") == at
    chunks = "--pipeline_model_parallel_size 2 --num_layers_per_virtual_pipeline_stage 6"
    assert layout_of(f"{SWIFT} {chunks}").vp == 4, "48 layers in two stages of four chunks"


def test_a_pipeline_that_is_written_down_is_that_of_the_run() -> None:
    stages = "--pipeline_model_parallel_size 4 --pipeline_model_parallel_layout 'Et*5|(t*6|)*6t*7L'"
    run = megatron_run(f"{SWIFT} {stages}", RunHints(cluster="h100x8"))
    own = run.subject.job.framework.own_pipeline
    assert own is not None and (run.layout.vp, [own.on_rank(rank) for rank in range(4)]) == (2, [11, 12, 12, 13])


def test_a_script_of_megatron_lm_has_the_defaults_of_megatron_lm() -> None:
    at = Layout(num_gpus=8, global_batch=64, micro_batch=2)
    assert layout_of(SCRIPT, model="llama3-8b") == at
    assert layout_of(f"{SCRIPT} --recompute-activations", model="llama3-8b").recompute == "selective"
    experts = f"{SCRIPT} --tensor-model-parallel-size 2 --use-distributed-optimizer"
    assert (layout_of(experts, model="qwen3-30b-a3b").etp, layout_of(experts, model="llama3-8b").etp) == (2, 1)
    assert layout_of(experts, model="llama3-8b", n_gpus="16", cluster="h100x16").num_gpus == 16


def test_a_bubble_in_a_command_of_ms_swift_is_found(doctor: Run) -> None:
    command = f"{SWIFT} --pipeline_model_parallel_size 8 --global_batch_size 8 --recompute_granularity full"
    shown = as_json(doctor("--cluster", "h200x8", "--json", "--", *command.split()))
    assert shown["planned"]["layout"]["pp"] == 8
    assert "pipeline_bubble" in [advice["name"] for advice in shown["advice"]]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (f"megatron sft --model {MODEL} --max_length 4096", ("n_gpus", "--nproc-per-node")),
        (f"NPROC_PER_NODE=x megatron sft --model {MODEL} --max_length 1", ("--gpus 8",)),
        ("NPROC_PER_NODE=8 megatron sft --max_length 4096", ("--model NAME",)),
        (f"NPROC_PER_NODE=8 megatron sft --model {MODEL}", ("--seq 4096",)),
        (f"{SWIFT} --tensor_model_parallel_size $TP", ("--tensor-model-parallel-size", "'$TP'")),
        (f"{SWIFT} --tensor_model_parallel_size 3", ("n_gpus", "tp*pp*cp", "8 % (3*1*1 = 3)")),
        (f"{SWIFT} --micro_batch_size 0", ("--micro-batch-size", "is 0")),
        (f"{SWIFT} --recompute_granularity some", ("--recompute-granularity", "full or selective", "'some'")),
        (f"NNODES=2 {SWIFT}", ("--cluster h100x16",)),
    ],
)
def test_what_is_missing_is_reported_in_one_line(doctor: Run, arguments: str, parts: tuple[str, ...]) -> None:
    done = doctor(*H100, "--", *arguments.split())
    assert done.code == 2 and done.out == ""
    assert all(part in done.err for part in parts) and done.err.count("\n") == 1, done.err


@pytest.mark.parametrize(
    ("args", "command", "part"),
    [
        ("model=llama3-8b", "torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 8", "gbs"),
        ("model=llama3-8b,gbs=8", "torchrun --nproc-per-node 8 pretrain_gpt.py --seq-length 8", "micro-batch"),
        ("model=llama3-8b,gas=8", SCRIPT, "'gas'"),
        ("model=llama3-8b,n_gpus=8,gbs=8,seq=8", "bash train.sh", "micro-batch"),
    ],
)
def test_what_only_args_could_say_is_reported_in_one_line(doctor: Run, args: str, command: str, part: str) -> None:
    done = doctor(*H100, "--preset", "megatron", "--args", args, "--", *command.split())
    assert done.code == 2 and part in done.err and done.err.count("\n") == 1


def test_a_command_that_no_shell_would_take_is_refused_in_one_line() -> None:
    with pytest.raises(UsageError, match="layout") as caught:
        layout_of("torchrun 'pretrain_gpt.py", model="llama3-8b")
    assert "\n" not in str(caught.value)
