"""Steps and memory where experts do not get equally many tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.planner.planners import planner
from zenith_tune.estimates.memory import MemoryEstimate, estimate_memory
from zenith_tune.estimates.routing import busiest_of
from zenith_tune.estimates.workload import Workload
from zenith_tune.layouts.layout import Layout, parse_layout
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.planner.limits import IMBALANCE
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.planner.planner import Planner

MIXTRAL = planner("mixtral-8x7b", "h100x64", seq_len=4096)


def routed(imbalance: float) -> Planner:
    return Planner(MIXTRAL.model, MIXTRAL.cluster, replace(MIXTRAL.job, imbalance=imbalance), MIXTRAL.calibration)


def layout(text: str) -> Layout:
    return parse_layout(text, num_gpus=64, global_batch=256)


def planned(text: str, imbalance: float = IMBALANCE) -> PlannedLayout:
    (found,) = routed(imbalance).evaluate([layout(text)])
    return found


def memory(text: str, imbalance: float = IMBALANCE) -> MemoryEstimate:
    workload = Workload.of(MIXTRAL.model, replace(MIXTRAL.job, imbalance=imbalance))
    return estimate_memory(workload, batch_of([layout(text)]), MIXTRAL.job.framework, MIXTRAL.calibration.memory)


@pytest.mark.parametrize("ranks,experts", [(2, 4), (8, 1), (8, 16), (32, 4), (64, 4)])
def test_the_busiest_rank_is_that_of_loads_drawn_at_random(ranks: int, experts: int) -> None:
    sigma = np.sqrt(np.log1p(IMBALANCE**2))
    loads = np.exp(np.random.default_rng(0).normal(scale=sigma, size=(20_000, ranks, experts)))
    busiest = (loads / loads.mean(axis=(1, 2), keepdims=True)).mean(axis=2).max(axis=1)
    mean, spread = busiest_of(np.array([IMBALANCE / np.sqrt(experts)]), np.array([ranks]))
    assert mean[0] == pytest.approx(busiest.mean(), rel=0.02)
    assert spread[0] == pytest.approx(busiest.std(), rel=0.15)


def test_steps_wait_for_the_busiest_rank_and_it_keeps_more() -> None:
    skewed, balanced = planned("PP4 EP8 Z1 mbs1"), planned("PP4 EP8 Z1 mbs1", 0.0)
    assert skewed.busiest_load == pytest.approx(1.54, abs=0.01)
    assert skewed.balanced_bytes == balanced.memory_bytes < skewed.memory_bytes
    assert balanced.balanced_bytes is None and balanced.busiest_load == 1.0
    # Experts are four fifths of the products of Mixtral.
    assert 1.2 * balanced.time_parts["compute"] < skewed.time_parts["compute"] < 1.54 * balanced.time_parts["compute"]
    assert skewed.time_parts["ep"] > 1.4 * balanced.time_parts["ep"]


def test_the_risk_of_running_out_is_over_the_loads_that_the_busiest_rank_may_have() -> None:
    skewed, balanced = memory("PP4 EP8 Z1 mbs1"), memory("PP4 EP8 Z1 mbs1", 0.0)
    assert skewed.unsure_bytes[0] > balanced.unsure_bytes[0]
    risks = [planned("PP4 EP8 Z1 mbs1", imbalance).oom_probability for imbalance in (0.0, 0.35, 0.8)]
    assert risks == sorted(risks) and risks[-1] > risks[0]


def test_loads_average_out_over_the_layers_that_a_rank_keeps() -> None:
    def more(text: str) -> float:
        parts = [memory(text, imbalance).parts for imbalance in (IMBALANCE, 0.0)]
        skewed, balanced = (float(part["activations"][0] + part["working"][0]) for part in parts)
        return skewed / balanced

    # Of 16 layers of a stage the sum is nearer to the mean than the one that is recomputed at a time.
    assert more("PP2 EP8 Z1 mbs1") < 1.2 < more("PP2 EP8 Z1 mbs1 full/uniform1")


@pytest.mark.parametrize("text", ["PP4 Z1 mbs1", "TP4 PP4 ETP4 Z1 mbs1 SP"])
def test_ranks_that_have_all_experts_keep_the_same_whatever_the_routing(text: str) -> None:
    assert planned(text).balanced_bytes is None
    assert memory(text, 3.0).device_bytes == memory(text, 0.0).device_bytes
    assert planned(text, 3.0).step_s == planned(text, 0.0).step_s


def test_no_rank_has_more_tokens_than_all_ranks_together() -> None:
    assert 1.5 < planned("PP4 EP2 Z1 mbs1", 8.0).busiest_load <= 2.0
    assert busiest_of(np.array([1e9]), np.array([8]))[0][0] == 8.0
    loads = [planned("PP4 EP8 Z1 mbs1", imbalance).busiest_load for imbalance in (0.1, 0.35, 1.0, 2.0)]
    assert loads == sorted(loads) and 2.0 < loads[-1] < 8.0


def test_a_dense_model_has_no_routing() -> None:
    dense = planner("llama3-8b", "h100x8")
    job = replace(dense.job, imbalance=IMBALANCE)
    text = parse_layout("TP2 Z1 mbs1 SP", num_gpus=8, global_batch=64)
    (found,) = Planner(dense.model, dense.cluster, job, dense.calibration).evaluate([text])
    assert found.balanced_bytes is None and found.step_s == dense.evaluate([text])[0].step_s
