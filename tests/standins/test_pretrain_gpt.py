"""The stand-in for Megatron-LM, and studies on it: the preset asks it for nothing that it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

STANDIN = Path(__file__).parent / "pretrain_gpt.py"
DENSE = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 8192 --max-position-embeddings 8192 --swiglu --normalization RMSNorm "
    "--disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --bf16 "
    "--use-distributed-optimizer --mock-data --tokenizer-type NullTokenizer --vocab-size 128256 "
    "--micro-batch-size 1 --global-batch-size 64 --log-interval 1"
)
UNEVEN = DENSE.replace("--num-layers 32", "--num-layers 30")
EXPERTS = (
    "--num-layers 24 --hidden-size 2048 --ffn-hidden-size 5632 --num-attention-heads 16 --num-experts 32 "
    "--moe-router-topk 4 --moe-ffn-hidden-size 1408 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
    "--seq-length 4096 --max-position-embeddings 4096 --swiglu --disable-bias-linear --normalization RMSNorm "
    "--untie-embeddings-and-output-weights --position-embedding-type rope --bf16 --use-distributed-optimizer "
    "--mock-data --tokenizer-type NullTokenizer --vocab-size 32000 --micro-batch-size 1 --global-batch-size 64 "
    "--log-interval 1"
)
Tune = Callable[..., subprocess.CompletedProcess[str]]


def run(options: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ranks = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, str(STANDIN), *options.split()]
    return subprocess.run(command, env={**ranks, **variables}, capture_output=True, text=True, timeout=500)


def placed(folder: Path, version: str) -> Path:
    """Return the stand-in in a tree that says which release it is."""
    package = folder / "megatron" / "core"
    package.mkdir(parents=True)
    major, minor = version.split(".")
    (package / "package_info.py").write_text(f"MAJOR = {major}\nMINOR = {minor}\nPATCH = 0\nPRE_RELEASE = ''\n")
    return Path(shutil.copy(STANDIN, folder))


def placed_with_calculator(folder: Path, version: str = "0.20") -> Path:
    """Return the same with the calculator by which Megatron's loop asks for the micro-batches of each step."""
    script = placed(folder, version)
    (folder / "megatron" / "core" / "__init__.py").touch()
    shutil.copy(STANDIN.parent / "num_microbatches_calculator.py", folder / "megatron" / "core")
    return script


@pytest.mark.parametrize(
    ("model", "version"),
    [
        pytest.param(model, version, id=f"{name}-{version}")
        for name, model in {"dense": DENSE, "uneven": UNEVEN, "experts": EXPERTS}.items()
        for version in ("0.7", "0.12", "0.16", "0.20")
    ],
)
@pytest.mark.slow
def test_no_trial_of_a_study_is_refused(zenithtune: Tune, tmp_path: Path, model: str, version: str) -> None:
    script = placed(tmp_path, version)
    # A wide random sample meets more corners than the few trials that guided tuning wants.
    done = zenithtune(
        *("optimize", "--preset", "megatron-lm", "--args", "cluster=h100x8,levers=none", "--strategy", "random"),
        *("--strategy-args", "seed=1", "--n-trials", "10", "--no-confirm", "--json", "--"),
        *("env", "WORLD_SIZE=8", sys.executable, str(script), "--standin-version", version, *model.split()),
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    trials = [event for event in events if event["event"] == "trial_finished" and not event["is_baseline"]]
    refused = [trial["cause"] for trial in trials if trial["outcome"] not in ("ok", "oom")]
    assert (len(trials), refused) == (10, [])
    assert events[-1]["best"]["outcome"] == "ok"


@pytest.mark.parametrize("model", [DENSE, pytest.param(EXPERTS, marks=pytest.mark.slow)], ids=["dense", "experts"])
def test_guided_tuning_finds_a_faster_layout(zenithtune: Tune, tmp_path: Path, model: str) -> None:
    script = placed(tmp_path, "0.20")
    done = zenithtune(
        *("optimize", "--preset", "megatron-lm", "--args", "cluster=h100x8", "--n-trials", "8", "--json", "--"),
        *("env", "WORLD_SIZE=8", sys.executable, str(script), *model.split()),
        *("--tensor-model-parallel-size", "4", "--sequence-parallel"),
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert set(end["outcomes"]) <= {"ok", "oom"}
    assert end["gain"] > 0.05


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ("--tensor-model-parallel-size 3", "world size (8) is not divisible by total_model_size (total_model_size=3)"),
        ("--micro-batch-size 3", "global batch size (64) is not divisible by micro batch size (3) times data parallel"),
        ("--num-attention-heads 4 --num-query-groups 4 --tensor-model-parallel-size 8", "num_attention_heads (4) must"),
        ("--pipeline-model-parallel-size 8 --num-layers 36", "num_layers should be divisible by pipeline_model"),
        ("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 3", "should be divisible by vp_size"),
        ("--recompute-granularity selective --recompute-method block", "recompute method is not yet supported for"),
        ("--recompute-granularity full", 'recompute_method must be "block" or "uniform"'),
        (
            "--num-experts 8 --sequence-parallel --tensor-model-parallel-size 4 --expert-model-parallel-size 4",
            "world_size (8) is not divisible by expert_tensor_model_pipeline_parallel size (16)",
        ),
        ("--num-experts 8 --tensor-model-parallel-size 2", "During training, performance may degrade if MoE and"),
        ("--tensor_model_parallel_size 2", "unrecognized arguments: --tensor_model_parallel_size 2"),
        ("--standin-version 0.7 --expert-tensor-parallel-size 1", "unrecognized arguments: --expert-tensor-parallel"),
        ("--standin-version 0.12 --num-query-groups 4 --tensor-model-parallel-size 8", "must be a multiple of tensor"),
        ("--micro-batch-size 8", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"),
    ],
)
def test_what_megatron_refuses_is_refused_in_its_words(options: str, text: str) -> None:
    done = run(f"{DENSE} {options}", WORLD_SIZE="8")
    assert done.returncode != 0
    assert text in done.stderr
    assert "iteration " not in done.stdout


@pytest.mark.parametrize("version", ["0.7", "0.12", "0.16", "0.20"])
def test_the_lines_of_every_release_are_read(version: str) -> None:
    done = run(f"{DENSE} --log-throughput --tensor-model-parallel-size 2 --standin-version {version}", WORLD_SIZE="8")
    measurement = MegatronEvaluator().measure(done.stdout, {})
    assert measurement.unit == "TFLOP/s/GPU" and 100 < measurement.value < 400
    assert measurement.peak_memory_bytes is not None and measurement.peak_memory_bytes > 2**34
    assert "  tensor_model_parallel_size ...................... 2\n" in done.stdout


def test_each_rank_prints_its_own_part() -> None:
    options = f"{DENSE} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    outputs = [run(options, WORLD_SIZE="8", RANK=str(rank)).stdout for rank in range(8)]
    assert [rank for rank, output in enumerate(outputs) if "using world size: 8" in output] == [0]
    assert [rank for rank, output in enumerate(outputs) if "elapsed time per iteration" in output] == [7]
    assert [rank for rank, output in enumerate(outputs) if f"[Rank {rank}]" in output] == [0, 1, 4, 5]


def test_the_last_rank_of_a_fake_group_prints_nothing() -> None:
    options = f"{DENSE} --tensor-model-parallel-size 8 --fake-process-group"
    assert run(options, WORLD_SIZE="64", RANK="63").stdout == ""
    first = run(options, WORLD_SIZE="64", RANK="0").stdout
    assert "[Rank 0]" in first and "elapsed time per iteration" in first
