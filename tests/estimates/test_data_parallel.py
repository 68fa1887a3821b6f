"""Legend: Psi parameters, n data-parallel ranks, as in Rajbhandari et al. 2019 (1910.02054), section 7."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.estimates.time_cases import GPT3, IDEAL, Case, case
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.calibration import TimeCoefficients
from zenith_tune.estimates.collectives import SIMPLE, gather_time
from zenith_tune.estimates.communication import LocalParams, bucket_params, data_time, exchange_time, local_params

PSI = 7.5e12
"""So many that no latency counts."""


def held(at: Case, num_params: float = PSI) -> LocalParams:
    one = np.ones(len(at.layouts))
    return LocalParams(num_params * one, 0 * one, one)


def exposed(at: Case, coefficients: TimeCoefficients = IDEAL, pass_s: float = 1.0) -> np.ndarray:
    """Return the exposed seconds of a framework that exchanges all parameters at once."""
    hidden_by, whole = np.full(len(at.layouts), pass_s), replace(at.framework, name="nanotron")
    return data_time(held(at), at.machine, at.layouts, whole, coefficients, hidden_by)


def test_sharding_moves_as_much_as_an_all_reduce_and_half_as_much_again_with_the_weights() -> None:
    # Section 7: stages 1 and 2 move 2*Psi as the baseline does, stage 3 moves 3*Psi.
    at = case(GPT3, "a100x64", dp=64, gbs=64, zero=[0, 1, 2, 3])
    seconds = exposed(at)
    fast, slow = float(at.machine.fast_bytes_per_s), float(at.machine.slow_bytes_per_s)
    once = 2 * PSI * (7 / 8 / fast + 7 / 8 / 8 / slow)
    assert seconds == pytest.approx([2 * once, 2 * once, 2 * once, 3 * once], rel=1e-4)


def test_sharded_weights_are_gathered_for_every_micro_batch() -> None:
    at = case(GPT3, "a100x64", dp=64, gbs=[64, 256], zero=3)
    one, four = exposed(at)
    assert four == pytest.approx(4 * one)


def test_gradients_in_fp32_cost_twice_as_much_to_reduce() -> None:
    at = case(GPT3, "a100x64", dp=64, gbs=64, zero=[0, 1])
    wide = replace(at, framework=replace(at.framework, reduced_gradient_bytes=4.0))
    assert exposed(wide) / exposed(at) == pytest.approx([2.0, 1.5], rel=1e-4)


def test_what_overlaps_with_the_backward_pass_is_hidden_but_for_a_tenth() -> None:
    at, half = case(GPT3, "a100x64", dp=64, gbs=64, zero=0), replace(IDEAL, data_overlap=0.5)
    bare = exposed(at)[0]
    assert exposed(at, half, pass_s=300.0)[0] == pytest.approx(bare - 0.5 * 300 * 2 / 3)
    assert exposed(at, half, pass_s=1e6)[0] == pytest.approx(0.1 * bare)


def test_a_single_rank_reduces_nothing() -> None:
    assert exposed(case(GPT3, "a100x8", dp=1, tp=8, zero=[0, 1, 3])).tolist() == [0.0, 0.0, 0.0]


def test_context_parallel_ranks_share_their_weights_too() -> None:
    at = case(GPT3, "a100x64", dp=[64, 8], cp=[1, 8], gbs=64, zero=1)
    apart, together = exposed(at)
    assert apart == pytest.approx(together)


def test_bandwidth_decays_by_a_power_of_the_domains() -> None:
    at = case(GPT3, "a100x64", dp=64, gbs=64, zero=0)
    assert exposed(at, replace(IDEAL, data_decay=0.2))[0] == pytest.approx(8**0.2 * exposed(at)[0], rel=1e-4)


def test_gradients_go_bucket_by_bucket_and_each_waits_anew() -> None:
    # Megatron's bucket has 40 million parameters, or a million for each of its ranks.
    at = case(GPT3, "a100x64", dp=[8, 64], tp=[8, 1], gbs=64, zero=1)
    bucket = bucket_params(at.framework, held(at), at.layouts)
    assert bucket.tolist() == [40e6, 64e6]
    in_one, in_ten = (
        exchange_time(gather_time, held(at, 640e6), size, at.machine, at.layouts, 2.0, IDEAL)[1]
        for size in (np.full(2, 640e6), bucket)
    )
    waits = (SIMPLE.base + 56 * SIMPLE.fast_step) * float(at.machine.fast_latency_s)
    waits += 7 * SIMPLE.slow_step * float(at.machine.slow_latency_s)
    assert in_ten - in_one == pytest.approx(9 * waits)


def test_sharded_weights_go_layer_by_layer() -> None:
    at = case(GPT3, "a100x64", dp=64, gbs=64, zero=3)
    params = local_params(at.workload, at.layouts, np.array([96.0]))
    assert bucket_params(at.framework, params, at.layouts)[0] == pytest.approx(params.dense[0] / 96)


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "mixtral-8x7b", "deepseek-v3"])
def test_the_ranks_of_a_model_hold_all_its_parameters(name: str) -> None:
    model = load_model(name)
    at = case(model, "h100x64", tp=4, ep=8, etp=1, dp=16, gbs=16)
    params = local_params(at.workload, at.layouts, np.array([float(model.num_layers)]))
    assert params.dense[0] * 4 + params.experts[0] * 8 == pytest.approx(model.num_params, rel=0.01)


def test_experts_are_reduced_only_over_the_ranks_that_hold_the_same_ones() -> None:
    at = case(load_model("mixtral-8x7b"), "h100x64", dp=64, ep=[8, 64], gbs=64)
    experts, whole = LocalParams(np.zeros(2), np.full(2, PSI), np.ones(2)), np.full(2, np.inf)
    shared, alone = exchange_time(gather_time, experts, whole, at.machine, at.layouts, 2.0, IDEAL)
    assert shared == pytest.approx(2 * PSI * 7 / 8 / float(at.machine.slow_bytes_per_s), rel=1e-4)
    assert alone == 0.0
