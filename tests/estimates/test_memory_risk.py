from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.estimates.memory_cases import llama, memory_of, workload
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.estimates.calibration import MemoryCoefficients, even_quantiles
from zenith_tune.estimates.memory import estimate_memory
from zenith_tune.estimates.memory_risk import (
    CRASH,
    MemoryRisk,
    expected_step,
    layout_risk,
    memory_quantiles,
    memory_risk,
    memory_spread,
    oom_probability,
    slowdown,
)
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.units import GIB

SURE = MemoryCoefficients(log_errors=even_quantiles(0.001))


def test_the_probability_rises_with_the_need_and_is_even_at_the_limit() -> None:
    need = np.linspace(60, 100, 41) * GIB
    found = oom_probability(need, 80 * GIB, MemoryCoefficients(log_errors=even_quantiles(0.05)))
    assert (np.diff(found) >= 0).all() and found[0] == 0 and found[-1] == 1
    assert found[20] == pytest.approx(0.5)


def test_the_interval_is_that_of_the_errors() -> None:
    c = MemoryCoefficients(log_errors=even_quantiles(0.1))
    assert c.interval == pytest.approx((-0.1645, 0.1645), abs=0.01)
    low, high = memory_quantiles(np.array([50.0]), (0.05, 0.95), c)
    assert (low[0], high[0]) == pytest.approx((50 * np.exp(c.interval[0]), 50 * np.exp(c.interval[1])), rel=1e-3)


def test_a_variant_widens_the_interval_on_its_side_only() -> None:
    c = MemoryCoefficients(log_errors=even_quantiles(0.02), variant_share=0.3)
    low, high = memory_quantiles(np.array([50.0]), (0.05, 0.95), c, variant=np.array([80.0]))
    assert low[0] > 47 and 79 < high[0] < 84


def test_no_variant_leaves_the_interval_as_it_is() -> None:
    c = MemoryCoefficients(log_errors=even_quantiles(0.02))
    alone = memory_quantiles(np.array([50.0]), (0.05, 0.95), c)
    assert memory_quantiles(np.array([50.0]), (0.05, 0.95), c, variant=np.array([80.0])) == pytest.approx(alone)


def test_what_no_run_measured_keeps_a_sure_calibration_from_certainty() -> None:
    sure = MemoryCoefficients(log_errors=even_quantiles(0.001))
    need = np.array([79.0, 80.0, 81.0]) * GIB
    step, smooth = oom_probability(need, 80 * GIB, sure), oom_probability(need, 80 * GIB, sure, 1.0 * GIB)
    assert step == pytest.approx([0.0, 0.5, 1.0], abs=0.01)
    assert smooth == pytest.approx([0.16, 0.5, 0.84], abs=0.02)


def test_independent_errors_add_in_quadrature() -> None:
    c = MemoryCoefficients(log_errors=even_quantiles(0.03))
    both = oom_probability(np.array([96.0]), 100.0, replace(c, log_errors=even_quantiles(0.05)))
    assert oom_probability(np.array([96.0]), 100.0, c, 0.04 * 96.0) == pytest.approx(both, rel=0.01)


def test_an_estimate_is_unsure_of_its_reserve_and_its_context() -> None:
    found = memory_of(llama(), "megatron", {"mbs": [1, 64], "gbs": 64})
    assert found.unsure_bytes[0] == pytest.approx(0.5 * GIB, rel=0.1)
    assert found.unsure_bytes == pytest.approx(np.hypot(found.parts["reserve"], 0.5 * GIB))
    c = MemoryCoefficients(log_errors=even_quantiles(0.001))
    low, high = memory_quantiles(found.device_bytes, (0.05, 0.95), c, spread=memory_spread(found, c))
    assert high - found.device_bytes == pytest.approx(1.645 * found.unsure_bytes, rel=0.15)
    assert (low < found.device_bytes).all()


def test_the_middle_of_runs_is_that_of_the_estimate() -> None:
    coefficients = [MemoryCoefficients(log_middle=middle) for middle in (0.0, np.log(1.1))]
    plain, moved = (memory_of(llama(), "megatron", {"mbs": [1, 4], "gbs": 64}, coefficients=c) for c in coefficients)
    assert moved.allocated_bytes == pytest.approx(1.1 * plain.allocated_bytes)
    assert sum(moved.parts.values()) == pytest.approx(moved.device_bytes)


def test_the_risk_of_a_framework_with_a_variant_is_that_of_both() -> None:
    at, spec = workload(llama(), "nanotron"), load_framework("nanotron")
    layouts = LayoutBatch.of(tp=8, mbs=8, gbs=64, sequence_parallel=True)
    waiting = estimate_memory(at, layouts, load_framework("nanotron-waiting"), SURE)
    memory, risk = layout_risk(at, layouts, spec, replace(SURE, variant_share=0.3), waiting.device_bytes)
    alone = layout_risk(at, layouts, spec, SURE, waiting.device_bytes)[1]
    assert memory.device_bytes[0] > waiting.device_bytes[0]
    assert risk.oom == pytest.approx(0.7 * alone.oom + 0.3 * 0.5)


def test_the_expected_step_is_the_mean_over_sampled_errors_of_memory() -> None:
    c, thrash = MemoryCoefficients(log_errors=even_quantiles(0.03)), 4.0
    found = memory_of(llama(), "megatron", {"mbs": [1, 4, 16], "gbs": 64})
    capacity = float(found.device_bytes[1]) * 1.03
    expected = expected_step(np.ones(3), memory_risk(found, capacity, c), thrash)
    spread = np.hypot(0.03, found.unsure_bytes / found.device_bytes)
    normal = np.random.default_rng(1).standard_normal((200_000, 1))
    needed = found.device_bytes * np.exp(spread * normal)
    sampled = np.where(needed > capacity, CRASH, slowdown(np.minimum(needed, capacity), capacity, thrash))
    assert expected == pytest.approx(sampled.mean(axis=0), rel=0.03)
    assert expected[0] == pytest.approx(1.0, abs=0.01) and expected[1] > 1.15 and expected[2] == pytest.approx(CRASH)


def test_the_risk_of_memory_makes_a_step_longer() -> None:
    risk = MemoryRisk(oom=np.array([0.0, 0.2]), tight=np.array([0.0, 0.1]))
    assert expected_step(np.array([10.0, 9.0]), risk, 4.0).round(1).tolist() == [10.0, 11.9]


def test_a_layout_at_capacity_runs_out_half_the_time() -> None:
    assert oom_probability(np.array([60e9, 80e9, 100e9]), 80e9, MemoryCoefficients()).round(2).tolist() == [
        0.0,
        0.5,
        1.0,
    ]


def test_quantiles_of_memory_lie_around_the_estimate() -> None:
    assert memory_quantiles(np.array([100.0]), (0.05, 0.5, 0.95), MemoryCoefficients()).round(0).ravel().tolist() == [
        90.0,
        100.0,
        111.0,
    ]


def test_a_full_memory_slows_a_step_down() -> None:
    assert slowdown(np.array([50.0, 99.0, 110.0]), 100.0, 5.0).round(2).tolist() == [1.0, 3.0, 5.0]
