"""Memory where experts do not get equally many tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.planner.planners import planner
from zenith_tune.estimate.memory import estimate_memory
from zenith_tune.estimate.workload import Workload
from zenith_tune.layouts.layout import parse_layout
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.planner.limits import IMBALANCE

MIXTRAL = planner("mixtral-8x7b", "h100x64", seq_len=4096)


def activations(text: str, imbalance: float) -> float:
    layouts = batch_of([parse_layout(text, num_gpus=64, global_batch=256)])
    coefficients = replace(MIXTRAL.calibration.memory, imbalance=imbalance, log_middle=0.0)
    workload = Workload.of(MIXTRAL.model, MIXTRAL.job)
    found = estimate_memory(workload, layouts, MIXTRAL.job.framework, coefficients, np.zeros(1))
    return float(found.parts["activations"][0])


def test_a_plan_states_memory_for_balanced_and_for_imbalanced_routing() -> None:
    (planned,) = MIXTRAL.evaluate([parse_layout("PP4 EP8 Z1 mbs1", num_gpus=64, global_batch=256)])
    assert planned.imbalanced_bytes is not None
    # The activations of experts are most of what a step keeps, and grow with their tokens.
    more = planned.imbalanced_bytes - planned.memory_bytes
    kept = planned.memory_parts["activations"] + planned.memory_parts["working"]
    assert 0.3 * (IMBALANCE - 1) * kept < more < 1.2 * (IMBALANCE - 1) * kept


@pytest.mark.parametrize("text", ["PP4 Z1 mbs1", "TP4 PP4 ETP4 Z1 mbs1 SP"])
def test_ranks_that_have_all_experts_keep_the_same_whatever_the_routing(text: str) -> None:
    (planned,) = MIXTRAL.evaluate([parse_layout(text, num_gpus=64, global_batch=256)])
    assert planned.imbalanced_bytes is None
    assert activations(text, 3.0) == activations(text, 1.0)


def test_no_rank_has_more_tokens_than_all_ranks_together() -> None:
    assert activations("PP4 EP2 Z1 mbs1", 8.0) == activations("PP4 EP2 Z1 mbs1", 2.0)
    assert activations("PP4 EP8 Z1 mbs1", 8.0) > activations("PP4 EP8 Z1 mbs1", 2.0)


def test_a_dense_model_has_no_routing() -> None:
    dense = planner("llama3-8b", "h100x8")
    (planned,) = dense.evaluate([parse_layout("TP2 Z1 mbs1 SP", num_gpus=8, global_batch=64)])
    assert planned.imbalanced_bytes is None
