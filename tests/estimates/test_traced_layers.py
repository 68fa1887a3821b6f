"""Estimates of a model whose blocks were seen in a pass, and that no config describes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec, TracedLayers
from zenith_tune.estimates.step import estimate
from zenith_tune.estimates.workload import Estimate
from zenith_tune.layouts.layout_batch import RECOMPUTE_NONE, RECOMPUTE_UNIFORM, LayoutBatch

LAYERS, HIDDEN, TOKENS = 24, 2048, 1024
SEEN = TracedLayers(num_params=50_000_000, saved_bytes=80_000.0, saved_other_bytes=9_000.0)
MODEL = ModelSpec(
    name="Gpt",
    num_layers=LAYERS,
    hidden=HIDDEN,
    ffn_hidden=0,
    num_heads=1,
    num_kv_heads=1,
    head_dim=0,
    vocab=0,
    gated_mlp=False,
    tied_embeddings=True,
    num_positions=5000,
    traced=SEEN,
)


def of(model: ModelSpec, layouts: LayoutBatch, framework: str = "fsdp") -> Estimate:
    job = JobSpec(seq_len=TOKENS, framework=load_framework(framework))
    return estimate(model, load_cluster("h100x8"), job, layouts, default_calibration(framework))


def test_all_parameters_are_counted() -> None:
    assert MODEL.num_params == LAYERS * SEEN.num_params + 5000 * HIDDEN


@pytest.mark.parametrize("framework", ["fsdp", "hf-accelerate", "deepspeed"])
def test_activations_grow_by_what_the_blocks_were_seen_to_keep(framework: str) -> None:
    found = of(MODEL, LayoutBatch.of(mbs=[8, 16, 32], dp=8, gbs=256), framework).memory_parts["activations"]
    per_sample = (LAYERS * SEEN.saved_bytes + SEEN.saved_other_bytes) * TOKENS
    memory = default_calibration(framework).memory
    scale = memory.activations * np.exp(memory.log_middle)
    assert found == pytest.approx(np.array([8, 16, 32]) * per_sample * scale, rel=1e-6)


def test_recomputed_blocks_keep_their_input() -> None:
    rows = LayoutBatch.of(mbs=2, dp=8, gbs=32, recompute=[RECOMPUTE_NONE, RECOMPUTE_UNIFORM], recompute_layers=[0, 1])
    kept, recomputed = of(MODEL, rows).memory_bytes
    assert recomputed < kept
    slow, quick = of(MODEL, rows).step_s[::-1]
    assert slow > quick


def test_blocks_that_keep_more_need_more_and_take_as_long() -> None:
    rows = LayoutBatch.of(mbs=8, dp=8, gbs=64)
    more = replace(MODEL, traced=replace(SEEN, saved_bytes=2 * SEEN.saved_bytes))
    lean, full = of(MODEL, rows), of(more, rows)
    assert full.memory_bytes > 1.2 * lean.memory_bytes
    assert full.time_parts["compute"] == pytest.approx(lean.time_parts["compute"])
