"""Legend: n ranks, V bytes; bus bandwidth as NCCL's tests define it (nccl-tests, doc/PERFORMANCE.md)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.estimates.time_cases import GPT3, IDEAL, case
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.collectives import MOST_ADAPTERS, SEND, all_reduce_time, gather_time
from zenith_tune.estimates.communication import (
    ALL_TO_ALL,
    context_time,
    expert_exchange_time,
    handover_time,
    ranks_nearby,
    tensor_time,
)
from zenith_tune.estimates.workload import Machine

MACHINE = case(GPT3, "h100x64").machine
FAST, SLOW = float(MACHINE.fast_bytes_per_s), float(MACHINE.slow_bytes_per_s)
V = 1e15
"""So many bytes that no latency counts."""
HUGE = 100_000
"""A micro-batch of which the same is true."""


def gather(ranks: float, near: float, machine: Machine = MACHINE) -> float:
    return float(gather_time(V, np.array([ranks]), np.array([near]), machine, IDEAL)[0])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_ring_inside_a_domain_reaches_the_bus_bandwidth_of_its_link(ranks: int) -> None:
    # All-gather and reduce-scatter: busbw = V/t * (n-1)/n.
    assert V / gather(ranks, ranks) * (ranks - 1) / ranks == pytest.approx(FAST)


def test_ranks_that_are_all_apart_use_the_network_alone() -> None:
    assert V / gather(16, 1) * 15 / 16 == pytest.approx(SLOW)


def test_several_domains_carry_their_share_over_the_network_while_the_rest_stays_inside() -> None:
    assert gather(16, 8) == pytest.approx(V * (7 / 8 / FAST + 1 / 2 / 8 / SLOW))


def test_a_group_uses_no_more_adapters_than_its_channels_reach() -> None:
    no_link = replace(MACHINE, fast_bytes_per_s=1e30)
    assert gather(144, 72, no_link) == pytest.approx(V / 2 / (MOST_ADAPTERS * SLOW))


def test_a_small_message_waits_for_the_steps_of_its_ring_and_a_large_one_for_its_bytes() -> None:
    ranks = np.array([8.0, 64.0])
    small, large = (gather_time(size, ranks, np.minimum(ranks, 8.0), MACHINE, IDEAL) for size in (1e5, 1e11))
    assert small[1] > 4 * small[0]
    assert large[1] / large[0] == pytest.approx(1 + (7 / 8 / 8 / SLOW) / (7 / 8 / FAST), rel=0.01)


def test_an_all_reduce_moves_what_a_scatter_and_a_gather_do() -> None:
    ranks, machine = np.array([4.0]), replace(MACHINE, switch_sums=0.0)
    twice = 2 * gather_time(V, ranks, ranks, machine, IDEAL)
    assert all_reduce_time(V, ranks, ranks, machine, IDEAL) == pytest.approx(twice)


def test_one_domain_is_as_fast_as_a_flat_ring_whatever_the_network() -> None:
    assert gather(8, 8) == gather(8, 8, replace(MACHINE, slow_bytes_per_s=1.0))


def test_a_group_of_one_exchanges_nothing() -> None:
    assert gather(1, 1) == 0.0


@pytest.mark.parametrize(
    ("ranks", "stride", "near"), [(8, 1, 8), (16, 1, 8), (4, 2, 4), (8, 2, 4), (8, 8, 1), (8, 16, 1), (2, 3, 2)]
)
def test_neighbours_are_counted_by_their_stride(ranks: int, stride: int, near: int) -> None:
    assert ranks_nearby(np.array([ranks * 1.0]), np.array([stride * 1.0]), MACHINE)[0] == near


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_tensor_parallelism_costs_four_all_reduces_a_layer(sequence_parallel: bool) -> None:
    # Korthikanti et al. 2022, 4.2.2: two all-reduces of s*b*h forward and two backward; 2*(n-1)/n * V each over a ring.
    # Sequence parallelism replaces each by a gather and a scatter of the same bytes.
    b, s, h = HUGE, 2048, 12288
    at = case(GPT3, "a100x64", mbs=b, tp=8, sequence_parallel=sequence_parallel)
    seconds = tensor_time(at.workload, at.machine, at.layouts, IDEAL)[0]
    assert seconds == pytest.approx(4 * 2 * 7 / 8 * s * b * h * 2 / float(at.machine.fast_bytes_per_s), rel=1e-4)


def test_without_tensor_parallelism_there_is_no_such_traffic() -> None:
    at = case(GPT3, "a100x64", tp=1)
    assert tensor_time(at.workload, at.machine, at.layouts, IDEAL)[0] == 0.0


def test_a_tensor_parallel_group_over_two_nodes_is_several_times_slower() -> None:
    at = case(GPT3, "h100x64", mbs=HUGE, tp=[8, 16], sequence_parallel=True)
    inside, outside = tensor_time(at.workload, at.machine, at.layouts, IDEAL)
    assert outside / inside == pytest.approx(1 + (1 / 2 / 8 / SLOW) / (7 / 8 / FAST), rel=1e-4)


def test_small_tensor_parallel_messages_are_worth_fewer_bytes_a_second() -> None:
    at = case(GPT3, "h100x64", mbs=[1, 64], tp=8, sequence_parallel=True)
    one, many = tensor_time(at.workload, at.machine, at.layouts, IDEAL)
    assert 64 * one > 1.2 * many


def test_the_ring_of_keys_and_values_passes_three_times() -> None:
    # Forward: keys and values; backward: both again, and their gradients (2310.01889, section 3.2).
    model = load_model("llama3-8b")
    at = case(model, "h100x8", seq_len=32768, mbs=HUGE, cp=4, tp=2)
    kv_bytes = HUGE * 32768 * 2 * 8 * 128 * 2 / 2
    ring = 3 * kv_bytes * 3 / 4 / FAST
    exposed = context_time(at.workload, at.machine, at.layouts, IDEAL, np.zeros(1))
    assert exposed[0] == pytest.approx(ring, rel=1e-4)
    hidden = context_time(at.workload, at.machine, at.layouts, IDEAL, np.array([1e9]))
    assert hidden[0] == pytest.approx(0.1 * ring, rel=1e-4), "long attention hides all but the first exchange"


def test_tokens_go_to_their_experts_and_back_forward_and_backward() -> None:
    # Four all-to-alls of top_k * tokens * h, of which (ep-1)/ep leaves the rank.
    at = case(load_model("mixtral-8x7b"), "h100x8", seq_len=4096, mbs=HUGE, ep=8, dp=8, gbs=8 * HUGE)
    seconds = expert_exchange_time(at.workload, at.machine, at.layouts, IDEAL)[0]
    assert seconds == pytest.approx(4 * 7 / 8 * 2 * HUGE * 4096 * 4096 * 2 / FAST, rel=1e-4)


def test_experts_over_nodes_send_seven_of_eight_parts_over_the_network_of_two() -> None:
    routed = HUGE * 8 * 4096 * 7168 * 2
    outside, inside = routed * 56 / 64 / SLOW, routed * 7 / 64 / FAST
    batch: dict[str, Any] = {"seq_len": 4096, "mbs": HUGE, "ep": 64, "dp": 64, "gbs": 64 * HUGE}
    at = case(load_model("deepseek-v3"), "h100x64", dispatcher="flex", **batch)
    fused = expert_exchange_time(at.workload, at.machine, at.layouts, IDEAL)[0]
    assert fused == pytest.approx(4 * (outside + inside), rel=1e-4)
    # A plain all-to-all gets half of the network, and nothing hides it whatever is hidden elsewhere.
    plain = case(load_model("deepseek-v3"), "h100x64", **batch)
    half_hidden = replace(IDEAL, expert_exposed=0.5)
    seconds = expert_exchange_time(plain.workload, plain.machine, plain.layouts, half_hidden)[0]
    assert seconds == pytest.approx(4 * (outside / ALL_TO_ALL + inside), rel=1e-4)


def test_stages_hand_over_an_activation_and_a_gradient() -> None:
    at = case(GPT3, "h100x64", mbs=2, tp=8, pp=[1, 8], sequence_parallel=[True, True])
    alone, far = handover_time(at.workload, at.machine, at.layouts, IDEAL)
    message = 2 * 2048 * 12288 * 2 / 8
    assert alone == 0.0
    waits = SEND.base * float(at.machine.fast_latency_s) + SEND.slow_step * float(at.machine.slow_latency_s)
    assert far == pytest.approx(2 * (message / SLOW + waits))


def test_neighbouring_stages_inside_a_node_use_its_link() -> None:
    at = case(GPT3, "h100x8", mbs=2, tp=2, pp=4, sequence_parallel=False)
    seconds = handover_time(at.workload, at.machine, at.layouts, IDEAL)[0]
    message = 2 * 2048 * 12288 * 2
    waits = (SEND.base + SEND.fast_step) * float(at.machine.fast_latency_s)
    assert seconds == pytest.approx(2 * (message / FAST + waits))
