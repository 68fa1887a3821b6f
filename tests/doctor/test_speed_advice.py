"""Advice on what makes a step slow; each has a case where it is right and one where it must be silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doctor.runs import run_of
from zenith_tune.describe.topology import read_topology, with_topology
from zenith_tune.doctor.diagnosed_run import Measured
from zenith_tune.doctor.diagnosis_input import DiagnosisInput
from zenith_tune.doctor.memory_advice import full_memory
from zenith_tune.doctor.planner_advice import single_change
from zenith_tune.doctor.speed_advice import (
    bubble_share,
    data_parallel_traffic,
    idle_recompute,
    needless_recompute,
    slow_tensor_link,
    small_micro_batch,
)
from zenith_tune.planner.planner import Planner

TOPOLOGIES = Path(__file__).parents[1] / "describe" / "topologies"
GB = 1e9


def test_a_micro_batch_that_does_not_fill_the_gpu_is_found() -> None:
    run = run_of("TP8 mbs1 SP Z1", seq_len=1024)
    advice = small_micro_batch(run)
    assert advice is not None and "1,024 tokens" in advice.finding
    larger = advice.planned
    assert larger.layout.micro_batch > 1 and larger.layout.tp == 8
    work = [sum(at.time_parts[name] for name in ("compute", "recompute", "overhead")) for at in (larger, run.planned)]
    assert advice.number == pytest.approx(1 - work[0] / work[1]) and advice.number > 0.3
    assert advice.gain == pytest.approx(run.planned.step_s / larger.step_s - 1)


def test_a_micro_batch_of_long_sequences_is_large_enough() -> None:
    assert small_micro_batch(run_of("TP2 mbs1 SP Z1", seq_len=8192)) is None


def test_a_larger_micro_batch_that_does_not_fit_is_not_advised() -> None:
    run = run_of("TP8 mbs1 SP Z1", seq_len=1024, model="llama3-70b", cluster="h200x8", gbs=8)
    assert run.planned.memory_bytes > 0.9 * run.planned.capacity_bytes
    assert small_micro_batch(run) is None


def test_a_larger_micro_batch_that_only_grows_the_bubble_is_not_advised() -> None:
    assert small_micro_batch(run_of("TP2 PP4 mbs1 SP Z1", gbs=8, seq_len=2048)) is None


@pytest.mark.parametrize(
    ("layout", "cluster", "parts"),
    [
        ("TP8 mbs1 SP Z1", "l40sx8", ("no NVLink", "TP8", "25 GB/s")),
        ("TP16 mbs1 SP Z1", "h100x16", ("8 GPUs", "TP16", "50 GB/s")),
    ],
)
def test_tensor_parallelism_over_a_slow_link_is_found(layout: str, cluster: str, parts: tuple[str, ...]) -> None:
    run = run_of(layout, cluster=cluster, seq_len=4096)
    advice = slow_tensor_link(run)
    assert advice is not None and all(part in advice.finding for part in parts)
    assert advice.number == pytest.approx(run.planned.time_parts["tp"] / run.planned.step_s) and advice.number > 0.3
    assert advice.planned.layout.tp <= run.cluster.fast_domain and advice.gain > 0.2
    assert advice.planned.oom_probability < run.risk


def test_tensor_parallelism_inside_nvlink_is_fine() -> None:
    assert slow_tensor_link(run_of("TP8 mbs1 SP Z1")) is None
    assert slow_tensor_link(run_of("PP2 mbs1 Z1 full", cluster="l40sx8", seq_len=4096)) is None


def test_what_nvlink_joins_is_what_the_topology_of_the_node_says() -> None:
    plain = run_of("TP4 mbs1 SP Z1", cluster="a100x8", seq_len=4096)
    assert slow_tensor_link(plain) is None
    pairs = read_topology(TOPOLOGIES / "a100_pcie_pairs.txt")
    at = plain.planner
    linked = Planner(at.model, with_topology(at.cluster, pairs, "pairs"), at.job, at.calibration)
    advice = slow_tensor_link(DiagnosisInput.of(linked, plain.layout))
    assert advice is not None and "2 GPUs" in advice.finding and advice.planned.layout.tp <= 2


def test_a_memory_that_is_all_but_full_is_found_with_what_it_costs() -> None:
    # As in Megatron-LM's PR 6311: 79.7 GB in use of 80, and 32.8 in place of 225 TFLOP/s.
    base = run_of("TP2 mbs1 SP Z1")
    context = base.planner.calibration.memory.context_bytes
    peak = 0.996 * base.planned.capacity_bytes - context
    run = run_of("TP2 mbs1 SP Z1", measured=Measured(step_s=30.0, peak_bytes=peak))
    advice = full_memory(run)
    assert advice is not None and advice.number == pytest.approx(0.996)
    assert "99.6% full" in advice.finding and "measured" in advice.finding
    assert advice.planned.memory_bytes < 0.97 * run.planned.memory_bytes and advice.gain > 1.0


def test_a_plan_that_all_but_fills_the_memory_needs_no_measurement() -> None:
    run = run_of("TP2 mbs1 SP Z1")
    tight = Measured(step_s=run.planned.step_s)
    full = next(
        found
        for blocks in range(31, 0, -1)
        if (found := run_of(f"TP2 mbs2 SP Z1 full/block{blocks}", measured=tight)).planned.memory_bytes
        > 0.985 * run.planned.capacity_bytes
    )
    advice = full_memory(full)
    assert advice is not None and "planned" in advice.finding and advice.gain > 0


@pytest.mark.parametrize("share", [0.5, 0.9, 0.96])
def test_a_memory_with_room_is_not_worth_a_word(share: float) -> None:
    base = run_of("TP2 mbs1 SP Z1")
    peak = share * base.planned.capacity_bytes - base.planner.calibration.memory.context_bytes
    assert full_memory(run_of("TP2 mbs1 SP Z1", measured=Measured(step_s=7.0, peak_bytes=peak))) is None


def test_selective_recomputation_beside_flash_attention_saves_nothing() -> None:
    run = run_of("TP2 PP2 mbs1 SP Z1 selective")
    advice = idle_recompute(run)
    assert advice is not None and advice.change == "recompute selective -> none"
    assert 0 <= advice.number < 0.6 * GB and advice.gain > 0.03
    assert idle_recompute(run_of("TP2 PP2 mbs1 SP Z1 selective", modules=("core_attn",))) is not None


@pytest.mark.parametrize(
    ("layout", "modules"),
    [
        ("TP2 PP2 mbs1 SP Z1", ()),
        ("TP2 PP2 mbs1 SP Z1 full", ()),
        ("TP2 PP2 mbs1 SP Z1 selective unfused", ()),
        ("TP2 PP2 mbs1 SP Z1 selective", ("mlp",)),
        ("TP2 PP2 mbs1 SP Z1 selective", ("core_attn", "layernorm")),
    ],
)
def test_recomputation_that_saves_something_is_left_alone(layout: str, modules: tuple[str, ...]) -> None:
    assert idle_recompute(run_of(layout, modules=modules)) is None


def test_recomputation_of_layers_that_there_is_room_for_is_found() -> None:
    run = run_of("TP2 PP2 mbs1 SP Z1 full")
    advice = needless_recompute(run)
    assert advice is not None and advice.number == pytest.approx(
        run.planned.time_parts["recompute"] / run.planned.step_s
    )
    assert advice.planned.layout.recompute == "none" and advice.gain > 0.15


def test_recomputation_that_is_needed_is_left_alone() -> None:
    assert needless_recompute(run_of("TP2 PP2 mbs1 SP Z1")) is None
    needed = run_of("TP8 PP8 mbs1 SP Z1 full", model="llama3-405b", cluster="h100x64", gbs=64)
    assert needed.planned.memory_bytes > 0.8 * needed.planned.capacity_bytes
    assert needless_recompute(needed) is None


def test_recomputation_is_left_out_with_smaller_micro_batches_where_larger_ones_do_not_fit() -> None:
    run = run_of("Z3 mbs2 full", gbs=16, framework="fsdp")
    advice = needless_recompute(run)
    assert advice is not None and advice.change == "mbs 2 -> 1, recompute full/uniform1 -> none"
    assert "24%" in advice.finding and advice.gain > 0.2
    assert advice.planned.oom_probability < run.risk


def test_data_parallel_ranks_that_wait_for_one_another_are_found() -> None:
    run = run_of("Z3 mbs1", cluster="l40sx8", seq_len=4096, framework="deepspeed")
    advice = data_parallel_traffic(run)
    assert advice is not None and advice.number == pytest.approx(run.planned.time_parts["dp"] / run.planned.step_s)
    for part in (f"{advice.number:.0%}", "data-parallel", "8 ranks", "8 micro-batches", "25 GB/s"):
        assert part in advice.finding
    assert advice.change == "mbs 1 -> 4, recompute none -> full/uniform1" and advice.gain > 0.9
    assert advice.planned.time_parts["dp"] < 0.5 * run.planned.time_parts["dp"]
    assert advice.planned.oom_probability < run.risk


@pytest.mark.parametrize(
    ("layout", "cluster"), [("Z3 mbs4 full", "l40sx8"), ("Z3 mbs1", "h100x8"), ("Z2 mbs2 full", "l40sx8")]
)
def test_data_parallel_traffic_that_takes_little_is_left_alone(layout: str, cluster: str) -> None:
    run = run_of(layout, cluster=cluster, seq_len=4096, framework="deepspeed")
    assert run.trains and run.planned.time_parts["dp"] < 0.1 * run.planned.step_s
    assert data_parallel_traffic(run) is None


def test_data_parallel_traffic_that_no_change_makes_less_is_left_alone() -> None:
    run = run_of("Z3 mbs1 full", model="llama2-13b", gbs=8, cluster="l40sx8", seq_len=4096, framework="deepspeed")
    assert run.trains and run.planned.time_parts["dp"] > 0.3 * run.planned.step_s
    assert data_parallel_traffic(run) is None, "one micro-batch of one sample, and nothing but ZeRO-3 fits"


def test_one_change_is_advised_where_it_has_no_cause_of_its_own_and_only_where_it_is_worth_it() -> None:
    advice = single_change(run_of("TP8 mbs1 SP Z1"))
    assert advice is not None and advice.gain >= 0.05 and "tp 8 -> 4" in advice.change
    assert single_change(run_of("TP2 mbs1 SP Z1")) is None


def test_the_bubble_shrinks_with_chunks() -> None:
    assert bubble_share(p=4, m=4) == 0.42857142857142855
    assert bubble_share(p=4, m=4, v=3) == 0.2
    assert bubble_share(p=1, m=8) == 0.0
