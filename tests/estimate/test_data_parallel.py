"""Legend: Psi parameters, n data-parallel ranks, as in Rajbhandari et al. 2019 (1910.02054), section 7."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.estimate.time_cases import GPT3, IDEAL, Case, case
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimate.calibration import TimeCoefficients
from zenith_tune.estimate.communication import LocalParams, data_time, exchange_time, local_params

PSI = 7.5e9


def exposed(at: Case, coefficients: TimeCoefficients = IDEAL, pass_s: float = 1.0) -> np.ndarray:
    params = LocalParams(np.full(len(at.layouts), PSI), np.zeros(len(at.layouts)))
    hidden_by = np.full(len(at.layouts), pass_s)
    return data_time(params, at.machine, at.layouts, at.framework, coefficients, hidden_by)


def test_sharding_moves_as_much_as_an_all_reduce_and_half_as_much_again_with_the_weights() -> None:
    # Section 7: stages 1 and 2 move 2*Psi as the baseline does, stage 3 moves 3*Psi.
    at = case(GPT3, "a100x64", dp=64, gbs=64, zero=[0, 1, 2, 3])
    seconds = exposed(at)
    once = 2 * PSI * (7 / 8 / float(at.machine.fast_bytes_per_s) + 7 / 8 / 8 / float(at.machine.slow_bytes_per_s))
    assert seconds == pytest.approx([2 * once, 2 * once, 2 * once, 3 * once])


def test_sharded_weights_are_gathered_for_every_micro_batch() -> None:
    at = case(GPT3, "a100x64", dp=64, gbs=[64, 256], zero=3)
    one, four = exposed(at)
    assert four == pytest.approx(4 * one)


def test_gradients_in_fp32_cost_twice_as_much_to_reduce() -> None:
    at = case(GPT3, "a100x64", dp=64, gbs=64, zero=[0, 1])
    wide = replace(at, framework=replace(at.framework, reduced_gradient_bytes=4.0))
    assert exposed(wide) / exposed(at) == pytest.approx([2.0, 1.5])


def test_what_overlaps_with_the_backward_pass_is_hidden_but_for_a_tenth() -> None:
    at, half = case(GPT3, "a100x64", dp=64, gbs=64, zero=0), replace(IDEAL, data_overlap=0.5)
    bare = exposed(at)[0]
    assert exposed(at, half, pass_s=0.3)[0] == pytest.approx(bare - 0.5 * 0.3 * 2 / 3)
    assert exposed(at, half, pass_s=1e6)[0] == pytest.approx(0.1 * bare)


def test_a_single_rank_reduces_nothing() -> None:
    assert exposed(case(GPT3, "a100x8", dp=1, tp=8, zero=[0, 1, 3])).tolist() == [0.0, 0.0, 0.0]


def test_context_parallel_ranks_share_their_weights_too() -> None:
    at = case(GPT3, "a100x64", dp=[64, 8], cp=[1, 8], gbs=64, zero=1)
    apart, together = exposed(at)
    assert apart == pytest.approx(together)


def test_bandwidth_decays_by_a_power_of_the_domains() -> None:
    at = case(GPT3, "a100x64", dp=64, gbs=64, zero=0)
    assert exposed(at, replace(IDEAL, data_decay=0.2))[0] == pytest.approx(8**0.2 * exposed(at)[0])


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "mixtral-8x7b", "deepseek-v3"])
def test_the_ranks_of_a_model_hold_all_its_parameters(name: str) -> None:
    model = load_model(name)
    at = case(model, "h100x64", tp=4, ep=8, etp=1, dp=16, gbs=16)
    held = local_params(at.workload, at.layouts, np.array([float(model.num_layers)]))
    assert held.dense[0] * 4 + held.experts[0] * 8 == pytest.approx(model.num_params, rel=0.01)


def test_experts_are_reduced_only_over_the_ranks_that_hold_the_same_ones() -> None:
    at = case(load_model("mixtral-8x7b"), "h100x64", dp=64, ep=[8, 64], gbs=64)
    experts = LocalParams(np.zeros(2), np.full(2, PSI))
    shared, alone = exchange_time(experts, at.machine, at.layouts, 2.0, IDEAL)
    assert shared == pytest.approx(2 * PSI * 7 / 8 / float(at.machine.slow_bytes_per_s))
    assert alone == 0.0
