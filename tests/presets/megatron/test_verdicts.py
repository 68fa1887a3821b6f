"""Megatron's own verdicts on random points, recorded in two tables, against the rules of the preset.

The verdicts are those of parse_args, validate_args, TransformerConfig and initialize_model_parallel of Megatron-LM's
main of 2026-08-22 (d98e8a64ddf3) on the commands that the preset writes, with torch 2.13 on a CPU, fused kernels off.
Transformer Engine was not there, so that what it refuses when the model is built is not among them.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

from zenith_tune.presets.megatron.preset import MegatronLmPreset
from zenith_tune.study.parameters import Params, Value

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
    "latent": f"--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 "
    f"{LLAMA.rpartition(' ')[0]} --multi-latent-attention --q-lora-rank 512 --kv-lora-rank 256 --qk-layernorm "
    "--num-experts 16 --moe-router-topk 2 --moe-ffn-hidden-size 1024 --moe-shared-expert-intermediate-size 1024 "
    f"--moe-layer-freq [0]*1+[1]*15 {EXPERTS} --moe-grouped-gemm",
    "gpt": "--num-layers 24 --hidden-size 1024 --num-attention-heads 16",
}
JOBS = {8: (32, 4096), 16: (48, 2048), 12: (36, 4096), 64: (256, 8192)}
"""Global batch and sequence length by GPUs."""
SWITCHES = ("sequence_parallel", "tp_overlap", "ep_overlap")
Verdict = tuple[str, int, Params, bool]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A file of verdicts, what was searched, and how many rows there are at least."""

    file: str
    search: str
    with_experts: str
    mbs_max: int
    num_rows: int
    num_each: int
    num_tried: int
    stated: dict[str, str]
    """Why points are pruned that Megatron's checks before training accept."""
    seen: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    """Values that occur among the accepted points."""


TABLES = {
    "sizes": Table(
        file="verdicts.csv",
        search="tp+pp+vp+cp+mbs+recompute",
        with_experts="+ep+etp",
        mbs_max=8,
        num_rows=2000,
        num_each=500,
        num_tried=1000,
        stated={
            "num_layers must be at least pp*vp": "a chunk without a layer: found out while the model is built",
            "m must be divisible by pp": "the interleaved schedule: found out as training starts",
            "recompute full/block takes": "more blocks than layers: the same run as all of them",
            "recomputes all": "the same run as full/uniform1, tried once",
        },
    ),
    "overlap": Table(
        file="overlap_verdicts.csv",
        search="tp+pp+vp+cp+mbs+recompute+zero+sequence_parallel+overlap+tp_overlap+modules",
        with_experts="+ep+etp+ep_overlap",
        mbs_max=4,
        num_rows=400,
        num_each=40,
        num_tried=300,
        stated={
            "overlap is without effect": "the same run under another name, tried once",
            "sequence parallelism needs tp above 1": "Megatron turns it off: the same run, tried once",
            "needs sequence parallelism": "a mixture of experts: found out in the first step",
            "recompute full/block takes": "more blocks than layers: the same run as all of them",
        },
        seen={
            "overlap": ("none", "grads", "params"),
            "tp_overlap": (True,),
            "ep_overlap": (True,),
            "recompute": tuple(
                f"selective/{name}" for name in ("mlp", "moe", "moe_act", "shared_experts", "layernorm", "mla_up_proj")
            ),
        },
    ),
}


@cache
def preset(table: str, model: str, gpus: int) -> MegatronLmPreset:
    gbs, seq = JOBS[gpus]
    nodes, per_node = (gpus // 8, 8) if gpus % 8 == 0 else (1, gpus)
    kind = TABLES[table]
    search = kind.search + (kind.with_experts if "--num-experts" in MODELS[model] else "")
    found = MegatronLmPreset(cluster=f"h100x{gpus}", search=search, mbs_max=kind.mbs_max)
    found.bind(
        f"torchrun --nproc-per-node {per_node} --nnodes {nodes} pretrain_gpt.py {MODELS[model]} --seq-length {seq} "
        f"--max-position-embeddings {seq} --micro-batch-size 1 --global-batch-size {gbs} --bf16 "
        "--use-distributed-optimizer --tokenizer-type NullTokenizer --vocab-size 32000 --train-iters 10"
    )
    return found


def value(name: str, text: str) -> Value:
    if name in SWITCHES:
        return text == "True"
    return text if name in ("recompute", "overlap") else int(text)


@cache
def verdicts(table: str) -> list[Verdict]:
    with Path(__file__).with_name(TABLES[table].file).open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        (
            row.pop("model"),
            int(row.pop("gpus")),
            {name: value(name, text) for name, text in row.items() if text and name != "accepted"},
            row["accepted"] == "1",
        )
        for row in rows
    ]


@cache
def reasons(table: str) -> list[str | None]:
    return [preset(table, model, gpus).explain(params) for model, gpus, params, _ in verdicts(table)]


def judged(table: str) -> Iterator[tuple[Verdict, str | None]]:
    return zip(verdicts(table), reasons(table), strict=True)


@pytest.mark.parametrize("table", TABLES)
def test_there_are_many_points_of_both_kinds_and_of_every_value(table: str) -> None:
    counts, kind = Counter(accepted for *_, accepted in verdicts(table)), TABLES[table]
    assert sum(counts.values()) >= kind.num_rows and min(counts.values()) >= kind.num_each
    for name, values in kind.seen.items():
        tried = Counter(params.get(name) for *_, params, accepted in verdicts(table) if accepted)
        assert min(tried[each] for each in values) >= (1 if name == "recompute" else 10), name


@pytest.mark.parametrize("table", TABLES)
def test_no_point_that_is_tried_is_refused_by_megatron(table: str) -> None:
    tried = [verdict for verdict, reason in judged(table) if reason is None]
    assert len(tried) >= TABLES[table].num_tried
    assert [point for *point, accepted in tried if not accepted] == []


@pytest.mark.parametrize("table", TABLES)
def test_points_that_megatron_accepts_are_pruned_for_stated_reasons_alone_and_each_occurs(table: str) -> None:
    stated, found, unstated = TABLES[table].stated, set(), []
    for (*point, accepted), reason in judged(table):
        if accepted and reason is not None:
            known = [part for part in stated if part in reason]
            found.update(known)
            unstated += [] if known else [(point, reason)]
    assert unstated == []
    assert found == {*stated}
