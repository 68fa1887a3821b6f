"""Runs of Megatron-LM that begin with steps of fewer micro-batches: which do, and that they state the same step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.presets.megatron.test_preset import PLAIN, bound
from tests.standins.test_pretrain_gpt import DENSE, EXPERTS, placed_with_calculator
from zenith_tune.presets.base import TuningPreset
from zenith_tune.presets.megatron_bridge.preset import MegatronBridgePreset
from zenith_tune.presets.parts import completed

Tune = Callable[..., subprocess.CompletedProcess[str]]
LAUNCH = "torchrun --nproc-per-node 8 pretrain_gpt.py"


def numbers(options: str, **point: str | int) -> tuple[int, ...] | None:
    found = bound(f"{LAUNCH} {options}", cluster="h100x8").short_steps({**PLAIN, **point} if point else {})
    return None if found is None else found.numbers


def test_numbers_are_those_of_each_layout() -> None:
    assert numbers(DENSE) == (2, 2, 4, 2, 3, 4, 2, 3), "8 micro-batches"
    assert numbers(DENSE, mbs=2) is None, "4 micro-batches"
    assert numbers(DENSE, tp=8) == (2, 2, 8, 2, 5, 8, 2, 5), "64 micro-batches"
    assert numbers(DENSE, tp=2, pp=4) == (8, 8, 16, 8, 12, 16, 8, 12)
    assert numbers(DENSE, tp=2, pp=4, vp=2) == (8, 8, 16, 8, 12, 16, 8, 12)
    groups = "--microbatch-group-size-per-virtual-pipeline-stage 8"
    assert numbers(f"{DENSE} {groups}", tp=2, pp=4, vp=2) == (16, 16, 32, 16, 24, 32, 16, 24)


@pytest.mark.parametrize(
    "options",
    [
        "--rampup-batch-size 8 8 1000",
        "--cuda-graph-impl local",
        "--defer-embedding-wgrad-compute",
        "--train-iters 10",
        "--train-samples 600",
        "--exit-interval 5",
        "--train-iters 500 --exit-interval 5",
    ],
)
def test_what_is_not_many_equal_micro_batches_has_whole_steps(options: str) -> None:
    assert numbers(f"{DENSE} {options}") is None


def test_a_run_with_room_for_whole_steps_begins_with_short_ones() -> None:
    assert numbers(f"{DENSE} --train-iters 11 --exit-interval 100 --save /checkpoints") is not None


def test_a_lever_with_graphs_has_whole_steps() -> None:
    assert numbers(DENSE, manual_gc=True) is not None
    assert numbers(DENSE, cuda_graphs="transformer_engine") is None


def test_experts_have_whole_steps() -> None:
    assert numbers(EXPERTS, ep=8) is None, "micro-batches of experts differ too much, also with balanced routing"


def test_recipes_of_megatron_bridge_have_whole_steps() -> None:
    preset: TuningPreset = MegatronBridgePreset(cluster="h100x8")
    assert completed(preset).short_steps({}) is None


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return placed_with_calculator(tmp_path)


def runs(zenithtune: Tune, script: Path, options: str, *more: str) -> list[dict[str, Any]]:
    """Return the user's own command and a trial of it, with the micro-batches of their steps."""
    folder = script.parent / f"out{len([*script.parent.glob('out*')])}"
    done = zenithtune(
        *("optimize", "--preset", "megatron-lm", "--args", "cluster=h100x8,search=mbs,levers=none", "--n-trials", "1"),
        *("--strategy", "grid", "--no-confirm", "--json", "--output-dir", str(folder), *more, "--"),
        *("env", "WORLD_SIZE=8", sys.executable, str(script), *options.split()),
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return [event | {"log": log_of(folder, event)} for event in found if event["event"] == "trial_finished"]


def log_of(folder: Path, event: dict[str, Any]) -> str:
    return next(folder.glob(f"*/trials/{event['number']:04}/log.txt")).read_text()


TP2 = f"{DENSE} --tensor-model-parallel-size 2 --sequence-parallel --train-iters 40 --standin-fixed-s 1.0"


@pytest.mark.parametrize("pipeline", ["--micro-batch-size 1", "--pipeline-model-parallel-size 2"])
def test_short_steps_state_the_step_that_whole_ones_do(zenithtune: Tune, script: Path, pipeline: str) -> None:
    options = f"{TP2} {pipeline} --standin-noise 0.0003 --standin-pace 0.05"
    short, whole = (runs(zenithtune, script, options, *more) for more in ([], ["--whole-steps"]))
    assert len(short) == 2
    for ours, theirs in zip(short, whole, strict=True):
        assert "short_steps" in ours["log"] and "short_steps" not in theirs["log"]
        assert "global batch size:    64" not in ours["log"], "it ended before a whole step had"
        assert ours["duration_s"] < theirs["duration_s"]
        for name in ("value", "step_s"):
            assert ours[name] == pytest.approx(theirs[name], rel=0.01), name
        assert ours["peak_memory_bytes"] == theirs["peak_memory_bytes"]


def test_noise_leads_on_to_whole_steps(zenithtune: Tune, script: Path) -> None:
    own, *_ = runs(zenithtune, script, f"{TP2} --standin-noise 0.08", "--early-precision", "2")
    assert "short_steps" in own["log"] and own["num_samples"] > 8
    assert own["log"].count("global batch size:    64") >= 20


def test_small_batches_and_ramp_up_are_as_they_were(zenithtune: Tune, script: Path) -> None:
    small = TP2.replace("--global-batch-size 64", "--global-batch-size 24")
    for run in runs(zenithtune, script, small):
        assert "short_steps" not in run["log"]
