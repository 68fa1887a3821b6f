"""Megatron's own verdicts on points with overlap and modules, recorded as in test_megatron_verdicts.

Transformer Engine was not there, so that what it refuses when the model is built is not among the verdicts.
"""

from __future__ import annotations

import csv
import functools
from collections import Counter
from pathlib import Path

import pytest

from tests.presets.megatron_lm.test_verdicts import EXPERTS, JOBS, LLAMA, MODELS
from zenith_tune.presets.megatron_lm.preset import MegatronLmPreset
from zenith_tune.study.parameters import Params, Value

FILE = Path(__file__).with_name("overlap_verdicts.csv")
LATENT = (
    f"--num-layers 16 --hidden-size 2048 --ffn-hidden-size 8192 --num-attention-heads 16 {LLAMA.rpartition(' ')[0]} "
    "--multi-latent-attention --q-lora-rank 512 --kv-lora-rank 256 --qk-layernorm --num-experts 16 --moe-router-topk 2 "
    "--moe-ffn-hidden-size 1024 --moe-shared-expert-intermediate-size 1024 --moe-layer-freq [0]*1+[1]*15 "
    f"{EXPERTS} --moe-grouped-gemm"
)
TUNED = {name: MODELS[name] for name in ("llama8b", "gpt", "mixtral", "moe48")} | {"latent": LATENT}
SEARCH = "tp+pp+vp+cp+mbs+recompute+zero+sequence_parallel+overlap+tp_overlap+modules"
SWITCHES = ("sequence_parallel", "tp_overlap", "ep_overlap")
STATED = (
    ("overlap is without effect on one data-parallel rank", "the same run under another name, tried once"),
    ("sequence parallelism needs tp above 1", "Megatron turns it off: the same run, tried once"),
    ("a mixture of experts with tp above 1 needs sequence parallelism", "Megatron finds out in the first step"),
    ("recompute full/block takes", "more blocks than layers: the same run as all of them"),
)
"""Why points are pruned that Megatron's checks before training accept."""


def command(model: str, gpus: int) -> str:
    gbs, seq = JOBS[gpus]
    return (
        f"torchrun --nproc-per-node 8 --nnodes {gpus // 8} pretrain_gpt.py {TUNED[model]} --seq-length {seq} "
        f"--max-position-embeddings {seq} --micro-batch-size 1 --global-batch-size {gbs} --bf16 "
        "--use-distributed-optimizer --tokenizer-type NullTokenizer --vocab-size 32000 --train-iters 10"
    )


@functools.cache
def preset(model: str, gpus: int) -> MegatronLmPreset:
    more = "+ep+etp+ep_overlap" if "--num-experts" in TUNED[model] else ""
    found = MegatronLmPreset(cluster=f"h100x{gpus}", search=SEARCH + more, mbs_max=4)
    found.bind(command(model, gpus))
    return found


def value(name: str, text: str) -> Value:
    if name in SWITCHES:
        return text == "True"
    return text if name in ("recompute", "overlap") else int(text)


@functools.cache
def verdicts() -> list[tuple[str, int, Params, bool]]:
    with FILE.open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        model, gpus, accepted = row.pop("model"), int(row.pop("gpus")), row.pop("accepted") == "1"
        found.append((model, gpus, {name: value(name, text) for name, text in row.items() if text}, accepted))
    return found


def test_there_are_hundreds_of_points_of_both_kinds_and_of_every_value() -> None:
    counts = Counter(accepted for *_, accepted in verdicts())
    assert sum(counts.values()) >= 400 and min(counts.values()) >= 40
    for name, values in {"overlap": ("none", "grads", "params"), "tp_overlap": (True,), "ep_overlap": (True,)}.items():
        tried = Counter(params.get(name) for *_, params, accepted in verdicts() if accepted)
        assert min(tried[each] for each in values) >= 10, name
    modules = {params["recompute"] for *_, params, accepted in verdicts() if accepted}
    names = ("mlp", "moe", "moe_act", "shared_experts", "layernorm", "mla_up_proj")
    assert {f"selective/{name}" for name in names} <= modules


def test_no_point_that_is_tried_is_refused_by_megatron() -> None:
    tried = [row for row in verdicts() if preset(row[0], row[1]).explain(row[2]) is None]
    assert len(tried) >= 300
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
