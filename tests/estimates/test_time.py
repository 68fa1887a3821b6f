"""Legend: p pipeline ranks, m micro-batches, v chunks per rank, as in Narayanan et al. 2021 (2104.04473)."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from tests.estimates.time_cases import GPT3, IDEAL, Case, case
from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.model_flops import forward_flops_per_token
from zenith_tune.estimates.time import QK_NORM_LAUNCHES
from zenith_tune.layouts.candidates import Candidates
from zenith_tune.layouts.layout_batch import (
    RECOMPUTE_BLOCK,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    RECOMPUTE_UNIFORM,
    LayoutBatch,
)

HEADLESS = replace(GPT3, vocab=0)
"""Without a vocabulary all stages of a pipeline have the same work."""
RATES = ("matrix_flops", "attention_flops", "memory_bytes_per_s", "fast_bytes_per_s", "slow_bytes_per_s")


def endless_links(at: Case) -> Case:
    return replace(
        at,
        machine=replace(at.machine, fast_bytes_per_s=1e30, slow_bytes_per_s=1e30, slow_latency_s=0, fast_latency_s=0),
    )


def many(model: str, num_gpus: int, gbs: int, count: int) -> Case:
    """Return a random choice of the layouts that the planner considers."""
    spec, framework = load_model(model), load_framework("megatron")
    job = JobSpec(seq_len=4096, framework=framework)
    found = LayoutBatch.concatenate(list(Candidates(spec, job, num_gpus, gbs).batches()))
    chosen = np.random.default_rng(3).choice(len(found), count, replace=False)
    return replace(case(spec, f"h100x{num_gpus}", seq_len=4096), layouts=found.take(chosen))


@pytest.mark.parametrize(("p", "m", "v"), [(8, 16, 1), (8, 64, 1), (8, 16, 3), (16, 32, 6), (4, 4, 1)])
def test_the_pipeline_bubble_is_that_of_narayanan_2021(p: int, m: int, v: int) -> None:
    # Section 2.2: bubble over ideal time is (p-1)/m, and (p-1)/(v*m) with interleaving.
    at = endless_links(case(HEADLESS, "a100x128", tp=1, pp=p, vp=v, dp=128 // p, gbs=m * (128 // p)))
    time = at.time()
    ideal = time.step_s[0] - time.parts["bubble"][0]
    assert time.parts["bubble"][0] / ideal == pytest.approx((p - 1) / (v * m))


def test_without_a_pipeline_there_is_no_bubble_and_no_message() -> None:
    parts = case(GPT3, "a100x8", tp=8, gbs=16).time().parts
    assert parts["bubble"][0] == pytest.approx(0.0, abs=1e-9) and parts["p2p"][0] == 0.0


def test_the_last_stage_waits_for_the_logits() -> None:
    # A stage of one layer and the output layer takes longer than the others, which wait for it.
    at = endless_links(case(replace(GPT3, vocab=500_000), "a100x96", pp=96, gbs=960))
    plain = endless_links(case(HEADLESS, "a100x96", pp=96, gbs=960))
    head = 6 * 2048 * 500_000 * 12288 / 312e12
    layer = plain.time().step_s[0] / (960 + 95)
    assert at.time().step_s[0] == pytest.approx(960 * (layer + head) + 95 * layer)


@pytest.mark.parametrize("kind", [RECOMPUTE_UNIFORM, RECOMPUTE_BLOCK])
def test_recomputing_every_layer_adds_exactly_a_forward_pass(kind: int) -> None:
    kinds = [RECOMPUTE_NONE, kind]
    at = case(HEADLESS, "a100x8", tp=8, gbs=16, recompute=kinds, recompute_layers=[0, 96])
    time = at.time()
    assert time.step_s[1] / time.step_s[0] == pytest.approx(4 / 3)
    assert time.parts["recompute"][1] == pytest.approx(time.step_s[1] / 4)


def test_recomputing_blocks_costs_by_their_number() -> None:
    kinds = [RECOMPUTE_NONE, RECOMPUTE_BLOCK, RECOMPUTE_BLOCK]
    at = case(HEADLESS, "a100x8", tp=8, gbs=16, recompute=kinds, recompute_layers=[0, 24, 48])
    assert at.time().parts["recompute"] == pytest.approx(at.time().step_s[0] / 3 * np.array([0, 0.25, 0.5]))


def test_selective_recomputation_repeats_the_forward_of_attention_alone() -> None:
    at = case(HEADLESS, "a100x8", tp=8, mbs=1, gbs=16, recompute=RECOMPUTE_SELECTIVE)
    scores = 2 * 2048**2 * 12288 / 8  # causal: half of 4*s^2*h, once
    assert at.time().parts["recompute"][0] == pytest.approx(16 * 96 * scores / 312e12)


def test_every_expert_of_a_rank_is_launched_by_itself() -> None:
    slow_host = replace(IDEAL, layer_launch_s=0.0, expert_launch_s=0.0, expert_product_s=1.0)
    at = case(load_model("mixtral-8x7b"), "h100x8", mbs=1, ep=[1, 8], dp=8, gbs=8)
    alone, spread = at.time(slow_host).step_s
    assert alone == pytest.approx(32 * 8, rel=1e-2) and spread == pytest.approx(32, rel=1e-2)


def test_a_layer_is_never_quicker_than_the_host_launches_it() -> None:
    slow_host = replace(IDEAL, layer_launch_s=1.0)
    at = case(HEADLESS, "h100x8", tp=8, gbs=16)
    assert at.time(slow_host).step_s[0] == pytest.approx(16 * 96 * 1.0, rel=1e-3)


def test_the_host_launches_again_what_is_recomputed_but_gathers_sharded_weights_as_often() -> None:
    slow_host = replace(IDEAL, layer_launch_s=1.0, launch_again=0.5, launch_selected=2.0, shard_launch_s=10.0)
    kinds: dict[str, Any] = {"recompute": [RECOMPUTE_NONE, RECOMPUTE_UNIFORM, RECOMPUTE_SELECTIVE]}
    alone, sharded = (
        case(HEADLESS, f"h100x{dp}", dp=dp, gbs=dp, zero=3, recompute_layers=[0, 1, 0], **kinds).time(slow_host).step_s
        for dp in (1, 8)
    )
    assert alone == pytest.approx(96 * np.array([1.0, 1.5, 3.0]), rel=1e-2)
    assert sharded == pytest.approx(96 * np.array([11.0, 11.5, 13.0]), rel=0.05)


def test_norms_of_queries_and_keys_are_launched_too_but_not_asked_about_by_selective_recomputation() -> None:
    slow_host = replace(IDEAL, layer_launch_s=1.0, launch_again=0.5, launch_selected=2.0)
    kinds: dict[str, Any] = {"recompute": [RECOMPUTE_NONE, RECOMPUTE_UNIFORM, RECOMPUTE_SELECTIVE]}
    plain, normed = (
        case(replace(HEADLESS, qk_norm=qk_norm), "h100x1", gbs=1, recompute_layers=[0, 1, 0], **kinds)
        .time(slow_host)
        .step_s
        for qk_norm in (False, True)
    )
    more = 96 * QK_NORM_LAUNCHES
    assert normed - plain == pytest.approx([more, 1.5 * more, more], rel=0.05) and more > 1


def test_the_optimizer_updates_its_shard_once_a_step() -> None:
    passes = replace(IDEAL, optimizer_passes=30.0, memory_efficiency=1.0)
    at = case(GPT3, "a100x64", tp=8, dp=8, gbs=[64, 128], zero=1)
    parts = at.time(passes).parts["optimizer"]
    shard = GPT3.num_params / 64
    assert parts == pytest.approx(30 * shard / float(at.machine.memory_bytes_per_s), rel=0.01)


@pytest.mark.parametrize(("model", "gbs"), [("llama3-70b", 512), ("mixtral-8x22b", 512)])
def test_parts_add_up_to_the_step(model: str, gbs: int) -> None:
    time = many(model, 64, gbs, 500).time(TimeCoefficients())
    assert sum(time.parts.values()) == pytest.approx(time.step_s, rel=1e-12)
    assert np.isfinite(time.step_s).all() and (time.step_s > 0).all()
    assert all((part >= -1e-9 * time.step_s).all() for part in time.parts.values())


@pytest.mark.parametrize("model", ["llama3-70b", "deepseek-v3"])
def test_many_layouts_at_once_are_as_good_as_one_after_another(model: str) -> None:
    at, coefficients = many(model, 256, 1024, 60), TimeCoefficients()
    together = at.time(coefficients).step_s
    singly = [replace(at, layouts=at.layouts.take(np.array([i]))).time(coefficients).step_s[0] for i in range(60)]
    assert together == pytest.approx(np.array(singly), rel=1e-12)


@pytest.mark.parametrize("rate", RATES)
def test_a_faster_machine_is_never_slower(rate: str) -> None:
    at = many("mixtral-8x22b", 64, 512, 400)
    faster = replace(at, machine=replace(at.machine, **{rate: 1.5 * getattr(at.machine, rate)}))
    before, after = at.time(TimeCoefficients()).step_s, faster.time(TimeCoefficients()).step_s
    assert (after <= before * (1 + 1e-12)).all() and (after < before).any()


def test_more_replicas_of_a_large_model_never_slow_a_step_down() -> None:
    sizes = np.array([1, 2, 4, 8, 16, 32, 64])
    at = case(load_model("llama3-70b"), "h100x2048", seq_len=4096, tp=8, pp=4, dp=sizes, gbs=2048, zero=1)
    assert (np.diff(at.time(TimeCoefficients()).step_s) < 0).all()


@pytest.mark.parametrize("name", [field.name for field in fields(TimeCoefficients) if "efficiency" in field.name])
def test_a_better_efficiency_is_never_slower(name: str) -> None:
    at, worse = many("mixtral-8x22b", 64, 512, 200), TimeCoefficients()
    better = replace(worse, **{name: 1.2 * getattr(worse, name)})
    assert (at.time(better).step_s <= at.time(worse).step_s * (1 + 1e-12)).all()


KORTHIKANTI = [
    ("gpt-22b", {"tp": 8, "mbs": 4, "gbs": 4}, 8, 1.42, 1.10),
    ("gpt3-175b", {"tp": 8, "pp": 8, "vp": 3, "gbs": 64}, 64, 18.13, 13.75),
    ("gpt-530b", {"tp": 8, "pp": 35, "vp": 3, "gbs": 280}, 280, 49.05, 37.83),
    ("gpt-1t", {"tp": 8, "pp": 64, "gbs": 512}, 512, 94.42, 71.49),
]


@pytest.mark.parametrize(("name", "layout", "num_gpus", "full_s", "selective_s"), KORTHIKANTI)
def test_steps_of_gpt_match_korthikanti_2022_table_5(
    name: str, layout: dict[str, Any], num_gpus: int, full_s: float, selective_s: float
) -> None:
    # A100, unfused attention: full recomputation, and selective with sequence parallelism.
    kinds: dict[str, Any] = {"recompute": [RECOMPUTE_UNIFORM, RECOMPUTE_SELECTIVE], "recompute_layers": [1, 0]}
    at = case(
        replace(load_model(name), vocab=51200), f"a100x{num_gpus}", framework="megatron-legacy", **layout, **kinds,
        sequence_parallel=[False, True], flash_attention=False,
    )  # fmt: skip
    known = default_calibration("megatron-legacy").time
    coefficients = known.coefficients_for(gpu="a100-80", precision="bf16", framework="megatron-legacy")
    assert at.time(coefficients).step_s == pytest.approx([full_s, selective_s], rel=0.15)


@pytest.mark.parametrize(("num_gpus", "dp", "tflops"), [(8192, 64, 430), (16384, 128, 400)])
def test_llama3_405b_reaches_the_rates_of_its_paper(num_gpus: int, dp: int, tflops: float) -> None:
    # Llama 3 (2407.21783), table 4: TP8 PP16, 16M tokens a batch, 43% and 41% MFU; of interleaving it says only that it
    # is used: two chunks are taken.
    model = load_model("llama3-405b")
    at = case(model, f"h100x{num_gpus}", seq_len=8192, tp=8, pp=16, vp=2, dp=dp, gbs=2048, zero=2, sequence_parallel=1)
    known = default_calibration("megatron").time
    coefficients = known.coefficients_for(gpu="h100", precision="bf16", framework="megatron", release=2024.5)
    flops = 3 * forward_flops_per_token(model, 8192) * 2048 * 8192
    assert flops / at.time(coefficients).step_s[0] / num_gpus / 1e12 == pytest.approx(tflops, rel=0.15)
