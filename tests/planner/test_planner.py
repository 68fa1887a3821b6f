from __future__ import annotations

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from tests.mentions import mentions
from tests.planner.planners import planner
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.errors import UsageError
from zenith_tune.layouts.candidates import Candidates
from zenith_tune.layouts.layout import Layout, parse_values
from zenith_tune.layouts.layout_batch import LayoutBatch, batch_of, layout_at
from zenith_tune.layouts.search_space import SearchSpace
from zenith_tune.planner.best_layouts import complexity
from zenith_tune.planner.plan import Obstacle
from zenith_tune.planner.planner import NEAR_MEMORY, RISK, Planner
from zenith_tune.units import format_seconds


def everything(at: Planner, global_batch: int) -> LayoutBatch:
    candidates = Candidates(at.model, at.job, at.cluster.num_gpus, global_batch)
    return LayoutBatch.concatenate(list(candidates.batches()))


@pytest.mark.parametrize(("model", "cluster", "gbs"), [("llama3-8b", "h100x8", 64), ("mixtral-8x7b", "h100x32", 128)])
def test_the_best_ties_with_the_fastest_of_all_that_fit(model: str, cluster: str, gbs: int) -> None:
    at = planner(model, cluster)
    layouts = everything(at, gbs)
    found = at.estimate(layouts)
    fits = found.oom_probability < RISK
    fastest = np.where(fits, found.expected_s, np.inf).min()
    plan = at.plan(gbs)
    assert plan.num_considered == len(layouts) and plan.num_fitting == int(fits.sum())
    assert plan.best[0].expected_s <= fastest * (1 + plan.tied_within), "refining may only better it"


def test_of_layouts_that_tie_the_simplest_is_listed_first() -> None:
    at = planner("llama3-70b", "gb200x72")
    plan = at.plan(1152)
    best = plan.best[0]
    layouts = everything(at, 1152)
    found = at.estimate(layouts)
    fastest = int(np.argmin(np.where(found.oom_probability < RISK, found.expected_s, np.inf)))
    assert layouts.vp[fastest] > 4 >= best.layout.vp, "the premise: many chunks are a little faster"
    assert found.expected_s[fastest] < best.expected_s < found.expected_s[fastest] * (1 + plan.tied_within)


@pytest.mark.parametrize(
    ("model", "cluster", "gbs"),
    [("llama3-70b", "gb200x72", 1152), ("llama3-405b", "h100x512", 512), ("mixtral-8x7b", "h100x64", 256)],
)
def test_of_layouts_that_are_said_to_tie_none_is_simpler_than_the_first(model: str, cluster: str, gbs: int) -> None:
    plan = planner(model, cluster).plan(gbs)
    ties = plan.best[: plan.num_tied]
    times, costs = [each.expected_s for each in ties], complexity(batch_of([each.layout for each in ties]))
    assert plan.num_tied > 1 and max(times) <= min(times) * (1 + plan.tied_within)
    assert costs[0] == min(costs)


def test_no_more_layouts_tie_than_are_listed() -> None:
    assert planner("mixtral-8x7b", "h100x64").plan(256, top=2).num_tied == 2


def test_the_list_is_sorted_but_for_ties_distinct_and_fits() -> None:
    plan = planner("llama3-70b", "h100x64").plan(512, top=8)
    times = [planned.expected_s for planned in plan.best]
    cuts = [(p.layout.tp, p.layout.pp, p.layout.ep, p.layout.micro_batch / p.layout.cp) for p in plan.best]
    assert len(times) == 8
    assert all(later > earlier / (1 + plan.tied_within) for earlier, later in itertools.pairwise(times))
    assert len(set(cuts)) == 8
    assert all(planned.oom_probability < plan.risk for planned in plan.best)
    assert all(planned.layout.num_gpus == 64 for planned in plan.best)


def test_parts_add_up_and_the_bound_is_the_largest() -> None:
    best = planner("llama3-70b", "h100x64").plan(512).best[0]
    assert sum(best.time_parts.values()) == pytest.approx(best.step_s)
    assert sum(best.memory_parts.values()) == pytest.approx(best.memory_bytes)
    assert best.bound.startswith(max(best.time_parts, key=best.time_parts.__getitem__))
    low, high = best.step_interval_s
    assert low < best.step_s < high


def test_mfu_is_the_models_work_over_the_peak() -> None:
    best = planner("llama3-8b", "h100x8").plan(64).best[0]
    # 6 N T with N = 8.03 B less the input table of 0.53 B, and causal attention: 6 * s/2 * 2 * h per layer and token.
    flops = 6 * (8.03e9 - 0.525e9) + 6 * 8192 * 4096 * 32
    rate = flops * best.tokens_per_s_per_gpu
    assert best.mfu == pytest.approx(rate / 989e12, rel=0.01)


def test_a_risky_layout_gives_way_to_a_safe_one_that_is_nearly_as_fast() -> None:
    at = planner("mixtral-8x7b", "h100x32")
    layouts = everything(at, 128)
    found = at.estimate(layouts)
    fastest = int(np.argmin(np.where(found.oom_probability < RISK, found.step_s, np.inf)))
    best = at.plan(128).best[0]
    assert found.oom_probability[fastest] > 0.1 > best.oom_probability, "the premise: the fastest is a risk"
    assert found.step_s[fastest] < best.step_s < 1.1 * found.step_s[fastest]
    assert best.expected_s < found.expected_s[fastest]
    assert found.expected_s[fastest] > found.step_s[fastest]


def test_a_smaller_risk_takes_no_layout_that_is_riskier() -> None:
    at = planner("llama3-70b", "h100x64")
    careful, bold = at.plan(512, risk=0.01), at.plan(512, risk=0.9)
    assert all(planned.oom_probability < 0.01 for planned in careful.best)
    assert careful.num_fitting <= bold.num_fitting


def test_near_misses_of_memory_are_faster_and_nearly_fit() -> None:
    plan = planner("llama3-70b", "h100x64").plan(512)
    misses = [miss for miss in plan.near_misses if miss.obstacle is Obstacle.MEMORY]
    assert misses
    for miss in misses:
        assert miss.planned.roomy_s < plan.best[0].step_s
        assert miss.planned.oom_probability >= plan.risk
        assert miss.planned.memory_bytes <= NEAR_MEMORY * plan.cluster.gpu.memory_bytes
        assert "79.1 GiB" in miss.reason and format_seconds(miss.planned.step_s) in miss.reason
        assert re.search(r"\d GiB", miss.hint) or "--risk" in miss.hint


def test_a_batch_that_goes_into_few_ranks_names_the_next_that_goes_into_more() -> None:
    plan = planner("llama3-8b", "h100x64").plan(510)
    misses = [miss for miss in plan.near_misses if miss.obstacle is Obstacle.BATCH]
    assert misses and misses[0].planned.layout.global_batch == 512
    assert misses[0].planned.tokens_per_s > plan.best[0].tokens_per_s
    assert mentions(misses[0].hint, "batch 512")
    assert mentions(misses[0].reason, f"{misses[0].planned.tokens_per_s_per_gpu:,.0f} tok/s/GPU", "batch 512")


def test_where_nothing_fits_the_smallest_is_shown_with_what_it_needs() -> None:
    plan = planner("llama3-405b", "h100x8").plan(8)
    assert plan.best == () and plan.num_fitting == 0
    assert plan.near_misses and plan.near_misses[0].obstacle is Obstacle.MEMORY


def test_an_impossible_batch_says_which_rule_and_what_is_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        planner("llama3-8b", "h100x7").plan(3, space=SearchSpace(max_pp=4))
    assert mentions(caught.value.problem, "7 GPUs", "batch 3", "gbs", "dp*mbs")
    assert mentions(caught.value.hint, "batch 7", "7 GPUs", "6 GPUs", "batch 3")


def test_pins_that_leave_nothing_say_why() -> None:
    with pytest.raises(UsageError, match=r"8 GPUs.*batch 64.*tp"):
        planner().plan(64, space=SearchSpace(pinned={"tp": 3}))


def test_pins_hold_in_the_plan() -> None:
    plan = planner("llama3-70b", "h100x64").plan(512, space=SearchSpace(pinned={"tp": 8, "pp": 2}))
    assert {(planned.layout.tp, planned.layout.pp) for planned in plan.best} == {(8, 2)}


def test_more_memory_is_never_slower() -> None:
    what_if = planner("llama3-70b", "h100x64").what_if(512, "mem=+60")
    assert what_if.gain is not None and what_if.gain >= 0
    assert what_if.after.cluster.gpu.memory_bytes == what_if.before.cluster.gpu.memory_bytes + 60 * 2**30


def test_more_gpus_get_a_plan_of_their_own() -> None:
    what_if = planner("llama3-8b", "h100x8").what_if(64, "gpus=16,seq=4096,gbs=128")
    after = what_if.after
    assert (after.cluster.num_gpus, after.job.seq_len, after.global_batch) == (16, 4096, 128)
    assert all(planned.layout.num_gpus == 16 for planned in after.best)


def test_the_front_is_not_beaten_and_holds_the_fastest() -> None:
    at = planner("llama3-70b", "h100x64")
    points = at.pareto(512)
    fastest = min(planned.step_s for planned in at.plan(512).front)
    assert fastest in [point.step_s for point in points]
    assert len({point.layout.num_gpus for point in points}) > 1
    for point in points:
        better = [o for o in points if o.layout.num_gpus <= point.layout.num_gpus and o.step_s < point.step_s]
        assert all(other.memory_bytes > point.memory_bytes for other in better)


def test_an_explained_layout_has_its_stages_and_better_neighbours() -> None:
    at = planner("llama3-70b", "h100x64")
    layout = Layout(num_gpus=64, tp=8, pp=4, zero=1, sequence_parallel=True, recompute="full/uniform",
                    recompute_layers=1, global_batch=512)  # fmt: skip
    explained = at.explain(layout)
    assert explained.broken == () and explained.planned is not None
    assert len(explained.stages) == 4
    fullest = max(stage.total_bytes for stage in explained.stages)
    assert fullest == pytest.approx(explained.planned.memory_bytes, rel=1e-6)
    assert explained.fits and explained.verdict == ""
    assert explained.steps and explained.steps[0].gain > 0
    assert explained.steps[0].planned.step_s < explained.planned.step_s


def test_a_layout_that_breaks_rules_says_all_of_them() -> None:
    layout = Layout(num_gpus=64, tp=1, sequence_parallel=True, zero=3, global_batch=512)
    explained = planner("llama3-70b", "h100x64").explain(layout)
    assert len(explained.broken) == 2
    assert explained.planned is not None and explained.steps == ()


def test_a_layout_whose_sizes_do_not_multiply_is_not_estimated() -> None:
    explained = planner().explain(Layout(num_gpus=8, tp=3, global_batch=64))
    assert explained.planned is None
    assert len(explained.broken) == 1 and "8 % (3*1*1 = 3)" in explained.broken[0]


@pytest.mark.parametrize("model", ["llama3-70b", "mixtral-8x7b"])
def test_many_layouts_at_once_are_estimated_as_each_alone(model: str) -> None:
    at = planner(model, "h100x64")
    layouts, random = everything(at, 512), np.random.default_rng(7)
    found = at.estimate(layouts)
    for row in random.integers(len(layouts), size=60):
        alone = at.evaluate([layout_at(layouts, int(row))])[0]
        assert alone.step_s == pytest.approx(float(found.step_s[row]), rel=1e-12)
        assert alone.memory_bytes == pytest.approx(float(found.memory_bytes[row]), rel=1e-12)
        assert alone.oom_probability == pytest.approx(float(found.oom_probability[row]), abs=1e-12)


def test_a_near_miss_is_explained_with_the_step_time_that_it_was_shown_with() -> None:
    at = planner("llama3-70b", "h100x64")
    miss = next(miss for miss in at.plan(512).near_misses if miss.obstacle is Obstacle.MEMORY)
    explained = at.explain(miss.planned.layout)
    assert explained.planned == miss.planned and explained.verdict == miss.reason
    assert not explained.fits
    assert sum(miss.planned.time_parts.values()) == pytest.approx(miss.planned.step_s)
    assert miss.planned.tokens_per_s == pytest.approx(512 * 8192 / miss.planned.step_s)


def test_what_would_cure_a_near_miss_is_inside_the_space() -> None:
    at = planner("llama3-70b", "h100x64")
    free = next(miss for miss in at.plan(512).near_misses if ", or " in miss.hint)
    name, value = free.hint.partition(", or ")[2].split()[:2]
    pinned = parse_values(f"{name}={value}", what="--fix")
    bound = at.plan(512, space=SearchSpace(pinned=pinned)).near_misses
    assert bound and not any(f" {name} " in miss.hint for miss in bound)


def test_hints_are_inside_the_space() -> None:
    layout = Layout(num_gpus=64, tp=8, pp=4, sequence_parallel=True, recompute="selective", global_batch=512)
    at = planner("llama3-70b", "h100x64")
    name, value = at.explain(layout).steps[0].change.split()[:2]
    steps = at.explain(layout, space=SearchSpace(pinned=parse_values(f"{name}={value}", what="--fix"))).steps
    assert steps and not any(step.change.startswith(name) for step in steps)


def test_a_planner_without_a_calibration_takes_the_one_of_its_framework() -> None:
    at = planner("llama3-8b", "h100x8")
    assert Planner(at.model, at.cluster, at.job).calibration == at.calibration


def test_where_nothing_fits_the_gpus_that_would_do_are_found() -> None:
    at = planner("llama3-405b", "h100x32")
    assert not at.plan(256).best
    enough = at.least_gpus(256, above=32)
    assert enough is not None and enough > 32
    assert planner("llama3-405b", f"h100x{enough}").plan(256).best
    unsharded = replace(at.job, framework=load_framework("hf-accelerate"))
    assert Planner(at.model, at.cluster, unsharded).least_gpus(256) is None


def test_a_plan_says_how_experts_are_taken_to_exchange_tokens_and_what_fp8_is_counted_as() -> None:
    at = planner("mixtral-8x7b", "h100x32")
    plain = at.plan(128, top=1)
    fused = Planner(at.model, at.cluster, replace(at.job, dispatcher="flex", precision="fp8")).plan(128, top=1)
    assert len(plain.assumptions) == 2 and mentions(plain.assumptions[1], "--dispatcher flex")
    assert len(fused.assumptions) == 3 and mentions(fused.assumptions[2], "fp8")
    (level,) = planner("llama3-8b", "h100x8").plan(64, top=1).assumptions
    assert mentions(level, "H100")
