"""The demo: a stand-in for Megatron-LM's pretrain_gpt.py, and the study that `make demo` runs."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from zenith_tune.describe.cluster_catalog import read_cluster
from zenith_tune.evaluators.failures.failures import FailureKind, classify

DEMO = ROOT / "examples" / "demo"
MODEL = (
    *("--num-layers", "16", "--hidden-size", "2048", "--ffn-hidden-size", "8192", "--num-attention-heads", "32"),
    *("--num-query-groups", "8", "--vocab-size", "128256", "--seq-length", "4096", "--train-iters", "1"),
)
TP, PP, MBS, GBS = (
    "--tensor-model-parallel-size",
    "--pipeline-model-parallel-size",
    "--micro-batch-size",
    "--global-batch-size",
)


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", str(DEMO / "pretrain_gpt.py"), *MODEL, "--global-batch-size", "32", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env={"WORLD_SIZE": "8"})


def step_ms(*options: str) -> float:
    done = run(*options)
    assert done.returncode == 0, done.stdout + done.stderr
    return float(re.findall(r"elapsed time per iteration \(ms\): ([\d.]+)", done.stdout)[0])


@pytest.mark.parametrize(
    "options",
    [
        ("--recompute-granularity", "selective", "--recompute-method", "uniform"),
        ("--recompute-granularity", "full"),
        (TP, "3"),
        (PP, "3"),
        (MBS, "3"),
        ("--no-such-option",),
    ],
)
def test_what_megatron_refuses_is_refused(options: tuple[str, ...]) -> None:
    done = run(*options)
    failure = classify(done.stdout + done.stderr, done.returncode)
    assert failure is not None and failure.kind is FailureKind.CONFIGURATION


def test_too_large_a_micro_batch_runs_out_of_memory_and_recomputation_makes_room() -> None:
    done = run(MBS, "4", GBS, "1024", "--seq-length", "16384")
    failure = classify(done.stdout + done.stderr, done.returncode)
    assert failure is not None and failure.kind is FailureKind.OUT_OF_MEMORY
    full = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
    assert run(MBS, "1", "--seq-length", "16384", *full).returncode == 0


def test_more_tensor_parallelism_recomputation_and_bubbles_take_time_and_overlap_saves_it() -> None:
    plain = step_ms()
    assert plain < step_ms(TP, "2") < step_ms(TP, "8")
    assert plain < step_ms(PP, "4")
    assert plain > step_ms("--overlap-grad-reduce", "--overlap-param-gather")
    full = ("--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1")
    assert 1.2 < step_ms(*full) / plain < 1.35


def test_its_cluster_is_no_real_one_so_that_nothing_is_learned_of_those() -> None:
    cluster = read_cluster(DEMO / "cluster.toml")
    assert (cluster.num_gpus, cluster.gpu.name) == (8, "pretend-h100")


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_the_demo_ends_in_a_verdict_and_a_page(tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    recipe = subprocess.run(
        ["make", "--no-print-directory", "-n", "-o", ".venv/.base", "demo"], cwd=ROOT, capture_output=True, text=True
    )
    subprocess.run(["bash", "-ec", recipe.stdout], cwd=tmp_path, check=True, timeout=500)
    (path,) = tmp_path.glob("zenithtune-out/demo-*/study.json")
    study = json.loads(path.read_text())
    verdict = study["search"]["verdict"]
    assert verdict["is_confirmed"] and verdict["low"] > 1.3
    assert study["search"]["strategy"] == "guided" and len(study["trials"]) < 12
    assert all(trial["outcome"] == "ok" for trial in study["trials"])
    assert (path.parent / "report.html").is_file()
