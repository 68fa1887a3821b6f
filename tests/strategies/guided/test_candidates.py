"""The layouts that guided tuning chooses from: many at a time as the tuner hands them over, or one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from zenith_tune.layouts.layout_batch import layout_at
from zenith_tune.strategies.guided.candidates import Candidates
from zenith_tune.tuner import PresetTuner

STAND_IN = Path(__file__).parents[2] / "standins" / "pretrain_gpt.py"
DENSE = (
    f"torchrun --nproc-per-node 8 {STAND_IN} --num-layers 24 --hidden-size 2048 --num-attention-heads 16"
    " --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 --micro-batch-size 1 --global-batch-size 32"
    " --bf16 --train-iters 10 --use-distributed-optimizer"
)
EXPERTS = DENSE + " --num-experts 8 --moe-router-topk 2 --disable-bias-linear"
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "dense": (DENSE, "megatron-lm", {"cluster": "h100x8"}),
    "every axis": (DENSE, "megatron-lm", {"cluster": "h100x8", "search": "tp+pp+vp+mbs+recompute+zero"}),
    "experts": (EXPERTS, "megatron-lm", {"cluster": "h100x8"}),
    "megatron": (
        "bash train.sh",
        "megatron",
        {"n_gpus": 4, "gbs": 8, "num_layers": 24, "num_query_groups": 8, "folding": True},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_tuner_hands_layouts_over_many_at_a_time_and_they_are_those_of_the_points(
    case: str, tmp_path: Path
) -> None:
    command, preset, args = CASES[case]
    tuner = PresetTuner(command, preset, "grid", "duration", output_dir=tmp_path, tune_args=args)
    job = tuner.tuned_job()
    assert job.tables() is not None
    many, single = Candidates.of_job(job), Candidates.of_job(replace(job, tables=lambda: None))
    assert many is not None and single is not None and len(many) == len(single) > 20
    for row in range(0, len(many), 1 + len(many) // 200):
        assert layout_at(many.batch, row) == layout_at(single.batch, row)
        assert many.point(row) == single.point(row)
