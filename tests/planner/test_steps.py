from __future__ import annotations

import math

from tests.planner.planners import planner
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.explanation import LEAST_GAIN

SLOW = Layout(num_gpus=64, tp=8, pp=4, sequence_parallel=True, recompute="selective", global_batch=512)


def test_at_most_one_change_of_each_kind_is_named() -> None:
    steps = planner("llama3-70b", "h100x64").explain(SLOW).steps
    kinds = [step.change.split(" ")[0] for step in steps]
    assert len(kinds) == len(set(kinds)) > 2
    faster = [step.gain for step in steps if step.gain > LEAST_GAIN]
    assert faster == sorted(faster, reverse=True)


def test_a_sharded_optimizer_is_named_though_it_is_hardly_faster() -> None:
    (step,) = [s for s in planner("llama3-70b", "h100x64").explain(SLOW).steps if s.change == "zero 0 -> 1"]
    assert step.saved_bytes > 8 * 2**30
    assert step.gain >= -LEAST_GAIN


def test_of_a_layout_that_does_not_fit_only_what_makes_it_fit_is_named() -> None:
    at = Layout(num_gpus=64, tp=4, pp=4, zero=1, sequence_parallel=True, global_batch=512)
    explained = planner("llama3-70b", "h100x64").explain(at)
    assert not explained.fits and explained.steps
    assert all(math.isinf(step.gain) and step.planned.oom_probability < 0.3 for step in explained.steps)
