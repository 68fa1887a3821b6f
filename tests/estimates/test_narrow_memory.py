"""Memory where products are of 8 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.planner.planners import planner
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.estimates.memory import MemoryEstimate, estimate_memory
from zenith_tune.estimates.workload import Workload
from zenith_tune.layouts.layout import parse_layout
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.planner.planner import Planner

LLAMA = planner("llama3-70b", "h100x64", seq_len=8192)


def memory(layout: str, framework: str = "megatron", **job: object) -> MemoryEstimate:
    layouts = batch_of([parse_layout(layout, num_gpus=64, global_batch=128)])
    spec = replace(LLAMA.job, framework=load_framework(framework), **job)  # type: ignore[arg-type]
    return estimate_memory(Workload.of(LLAMA.model, spec), layouts, spec.framework, LLAMA.calibration.memory)


def test_inputs_of_products_are_kept_in_one_byte() -> None:
    h, q, kv, f, a = 8192, 8192, 2048, 28672, 64
    wide, narrow = (memory("TP4 PP8 Z1 mbs1 SP", precision=name).parts["activations"][0] for name in ("bf16", "fp8"))
    layer = 8 * h + 4 * q + 3 * kv + 2 * q + 4 * a + 6 * f
    assert narrow / wide == pytest.approx((layer - 2 * h - q - f) / layer, rel=0.001)


def test_weights_are_cached_unless_they_are_gathered_in_fp8() -> None:
    wide = memory("TP4 PP8 Z1 mbs1 SP").parts["weights"][0]
    cached = memory("TP4 PP8 Z1 mbs1 SP", precision="fp8").parts["weights"][0]
    gathered = memory("TP4 PP8 Z1 mbs1 SP", precision="fp8", gathers_fp8=True).parts["weights"][0]
    assert gathered == wide
    assert 1.8 * wide < cached <= 2 * wide
    # Without a sharded optimizer nothing is gathered.
    assert memory("TP4 PP8 mbs1 SP", precision="fp8", gathers_fp8=True).parts["weights"][0] == cached


def test_frameworks_without_transformer_engine_keep_what_they_keep_in_bf16() -> None:
    wide, narrow = (memory("Z3 mbs1", "fsdp", precision=name).device_bytes[0] for name in ("bf16", "fp8"))
    assert narrow == wide


def test_a_published_run_of_llama_70b_in_fp8_is_planned_to_fit() -> None:
    # Megatron-Bridge's performance summary: TP4 PP8 VP5 on 64 H100, 1,602 to 1,664 tokens a second and GPU.
    job = replace(LLAMA.job, precision="fp8", gathers_fp8=True)
    layout = parse_layout("TP4 PP8 VP5 Z1 mbs1 SP", num_gpus=64, global_batch=128)
    (planned,) = Planner(LLAMA.model, LLAMA.cluster, job, LLAMA.calibration).evaluate([layout])
    assert planned.oom_probability < 0.3
    assert planned.tokens_per_s / 64 == pytest.approx(1630, rel=0.05)
