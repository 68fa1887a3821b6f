"""Megatron's own verdicts on random points, recorded, against the rules of the preset.

The verdicts are those of parse_args, validate_args, TransformerConfig and initialize_model_parallel of Megatron-LM's
main of 2026-08-22 (d98e8a64ddf3) on the commands that the preset writes, with torch 2.13 on a CPU, fused kernels off.
"""

from __future__ import annotations

import csv
import functools
from collections import Counter
from pathlib import Path

import pytest

from zenith_tune.presets.megatron_lm.preset import MegatronLmPreset
from zenith_tune.study.parameters import Params

FILE = Path(__file__).with_name("verdicts.csv")
LLAMA = (
    "--swiglu --disable-bias-linear --normalization RMSNorm --untie-embeddings-and-output-weights "
    "--position-embedding-type rope --group-query-attention"
)
EXPERTS = "--moe-token-dispatcher-type alltoall"
MODELS = {
    "llama8b": f"--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 {LLAMA} "
    "--num-query-groups 8",
    "gqa4": f"--num-layers 28 --hidden-size 3584 --ffn-hidden-size 18944 --num-attention-heads 28 {LLAMA} "
    "--num-query-groups 4 --add-qkv-bias",
    "mixtral": f"--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 {LLAMA} "
    f"--num-query-groups 8 --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 14336 {EXPERTS}",
    "moe48": f"--num-layers 48 --hidden-size 2048 --ffn-hidden-size 6144 --num-attention-heads 32 {LLAMA} "
    f"--num-query-groups 4 --num-experts 128 --moe-router-topk 8 --moe-ffn-hidden-size 768 {EXPERTS}",
    "gpt": "--num-layers 24 --hidden-size 1024 --num-attention-heads 16",
}
JOBS = {8: (32, 4096), 16: (48, 2048), 12: (36, 4096), 64: (256, 8192)}
"""Global batch and sequence length by GPUs."""
STATED = (
    ("num_layers must be at least pp*vp", "a chunk without a layer: Megatron finds out while it builds the model"),
    (
        "m must be divisible by pp when vp is above 1",
        "the interleaved schedule: Megatron finds out as it starts to train",
    ),
    ("recompute full/block takes", "more blocks than layers: the same run as all of them"),
    ("recomputes all", "the same run as full/uniform1, tried once"),
)
"""Why points are pruned that Megatron's checks before training accept."""


@functools.cache
def preset(model: str, gpus: int) -> MegatronLmPreset:
    gbs, seq = JOBS[gpus]
    nodes, per_node = (gpus // 8, 8) if gpus % 8 == 0 else (1, gpus)
    found = MegatronLmPreset(
        cluster=f"h100x{gpus}",
        search="tp+pp+vp+cp+mbs+recompute" + ("+ep+etp" if "--num-experts" in MODELS[model] else ""),
        mbs_max=8,
    )
    found.bind(
        f"torchrun --nproc-per-node {per_node} --nnodes {nodes} pretrain_gpt.py {MODELS[model]} --seq-length {seq} "
        f"--max-position-embeddings {seq} --micro-batch-size 1 --global-batch-size {gbs} --bf16 "
        "--use-distributed-optimizer --tokenizer-type NullTokenizer --vocab-size 32000 --train-iters 10"
    )
    return found


@functools.cache
def verdicts() -> list[tuple[str, int, Params, bool]]:
    with FILE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        model, gpus, accepted = row.pop("model"), int(row.pop("gpus")), row.pop("accepted") == "1"
        params: Params = {name: value if name == "recompute" else int(value) for name, value in row.items()}
        found.append((model, gpus, params, accepted))
    return found


def test_there_are_two_thousand_points_of_both_kinds() -> None:
    counts = Counter(accepted for *_, accepted in verdicts())
    assert sum(counts.values()) >= 2000 and min(counts.values()) >= 500


def test_no_point_that_is_tried_is_refused_by_megatron() -> None:
    tried = [
        (model, gpus, params, accepted)
        for model, gpus, params, accepted in verdicts()
        if preset(model, gpus).explain(params) is None
    ]
    assert len(tried) >= 1000
    assert [point for *point, accepted in tried if not accepted] == []


def test_no_point_that_megatron_accepts_is_pruned_without_a_stated_reason() -> None:
    unstated = []
    for model, gpus, params, accepted in verdicts():
        reason = preset(model, gpus).explain(params)
        if accepted and reason is not None and not any(words in reason for words, _ in STATED):
            unstated.append((model, gpus, params, reason))
    assert unstated == []


@pytest.mark.parametrize("words", [words for words, _ in STATED])
def test_every_stated_reason_is_one_that_occurs(words: str) -> None:
    reasons = (preset(model, gpus).explain(params) for model, gpus, params, accepted in verdicts() if accepted)
    assert any(reason is not None and words in reason for reason in reasons)
