from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.calibration.probe.probed import PIPELINE, as_planned, llama_planner, probed_layout
from zenith_calibration.probe.probed_layout import MEASURED, SCALED, ranked, stage_plans
from zenith_tune.planner.plan import PRESSURE
from zenith_tune.study.trial import Outcome


def test_a_probe_that_went_as_planned_leaves_the_plan_as_it_is() -> None:
    probed = probed_layout()
    combined = probed.combined()
    assert probed.time_ratio == pytest.approx(1.0)
    assert combined.step_s == pytest.approx(probed.planned.step_s)
    assert combined.memory_bytes == pytest.approx(probed.planned.memory_bytes)


def test_work_and_the_wait_for_it_take_as_long_as_measured_and_messages_stay_modelled() -> None:
    probed = probed_layout(slower=1.5)
    before, after = probed.planned, probed.combined()
    scaled = {*MEASURED, SCALED, PRESSURE}
    assert before.time_parts["tp"] > 0 and before.time_parts["p2p"] > 0 and before.time_parts["bubble"] > 0
    for name, part in before.time_parts.items():
        assert after.time_parts[name] == pytest.approx(part * (1.5 if name in scaled else 1.0)), name
    assert after.step_s == pytest.approx(sum(after.time_parts.values()))
    assert before.step_s < after.step_s < 1.5 * before.step_s


def test_speed_follows_the_step() -> None:
    probed = probed_layout(slower=2.0)
    before, after = probed.planned, probed.combined()
    for one, other in zip((before.tokens_per_s, before.mfu), (after.tokens_per_s, after.mfu), strict=True):
        assert one * before.step_s == pytest.approx(other * after.step_s)
    low, high = after.step_interval_s
    assert low < after.step_s < high


def test_the_slowest_stage_sets_the_pace() -> None:
    probed = probed_layout()
    first, *others = probed.stages
    step_s = first.probe.step_s
    assert step_s is not None
    slow = replace(probed, stages=(replace(first, probe=replace(first.probe, step_s=3 * step_s)), *others))
    longest = max(stage.plan.compute_s for stage in probed.stages)
    assert slow.time_ratio == pytest.approx((slow.stages[0].compute_s or 0) / longest)
    assert (slow.time_ratio or 0) > 2


def test_memory_is_that_of_the_fullest_stage_as_measured() -> None:
    probed = probed_layout(fuller=1.1)
    assert probed.fullest is probed.stages[0], "the first stage holds the most micro-batches"
    assert probed.combined().memory_bytes == pytest.approx(1.1 * probed.planned.memory_bytes)


@pytest.mark.parametrize(
    ("missing", "kind"),
    [([], "allocated"), (["allocated_bytes"], "reserved"), (["allocated_bytes", "reserved_bytes"], "device")],
)
def test_what_was_measured_is_held_against_its_like(missing: list[str], kind: str) -> None:
    nothing: dict[str, Any] = dict.fromkeys(missing)
    stage = probed_layout(fuller=1.2, **nothing).stages[0]
    assert stage.planned_bytes == getattr(stage.plan, f"{kind}_bytes")
    assert stage.memory_ratio == pytest.approx(1.2)


def test_without_any_memory_the_plan_keeps_its_own() -> None:
    nothing: dict[str, Any] = dict.fromkeys(["allocated_bytes", "reserved_bytes", "device_bytes"])
    probed = probed_layout(**nothing)
    assert probed.fullest is None and probed.combined().memory_bytes == probed.planned.memory_bytes


def test_micro_batches_that_were_left_out_take_as_long_as_those_that_ran() -> None:
    (plan,) = stage_plans(llama_planner(), PIPELINE, [0])
    stage = as_planned(plan, PIPELINE)
    assert (stage.probe.num_micro_batches, stage.num_micro_batches) == (8, 32)
    assert stage.compute_s == pytest.approx(plan.compute_s)
    step_s = stage.probe.step_s
    assert step_s is not None and 0 < plan.once_s < step_s
    assert stage.compute_s == pytest.approx(plan.once_s + 4 * (step_s - plan.once_s)), "the optimizer steps once"


def test_what_happens_once_is_at_most_half_of_a_step_that_was_far_quicker_than_planned() -> None:
    (plan,) = stage_plans(llama_planner(), PIPELINE, [0])
    stage = as_planned(plan, PIPELINE, step_s=plan.once_s)
    assert stage.compute_s == pytest.approx(plan.once_s * (0.5 + 4 * 0.5))


def test_a_layout_of_one_micro_batch_is_shown_as_it_ran() -> None:
    layout = replace(PIPELINE, global_batch=2)
    (plan,) = stage_plans(llama_planner(), layout, [0])
    stage = as_planned(plan, layout, step_s=0.7)
    assert stage.num_micro_batches == 1 and stage.compute_s == pytest.approx(0.7)


def test_the_first_stage_that_failed_is_the_cause() -> None:
    probed = probed_layout()
    failed = replace(probed.stages[1].probe, outcome=Outcome.OOM, cause="CUDA OOM", step_s=None)
    broken = replace(probed, stages=(probed.stages[0], replace(probed.stages[1], probe=failed)))
    assert probed.ok and probed.cause == ""
    assert not broken.ok and broken.cause == f"oom on stage 1: {failed.cause}"
    assert broken.time_ratio is None and broken.combined().step_s == pytest.approx(broken.planned.step_s)


def test_the_fastest_by_measure_comes_first_and_what_failed_last() -> None:
    slow, quick = probed_layout(slower=3.0), probed_layout(replace(PIPELINE, pp=2), slower=0.9)
    failed = probed_layout(replace(PIPELINE, pp=8), slower=0.1, outcome=Outcome.OOM)
    assert ranked([failed, slow, quick]) == [quick, slow, failed]
    quicker = probed_layout(slower=0.5)
    assert ranked([quick, quicker]) == [quicker, quick]


def test_stages_are_planned_one_by_one() -> None:
    first, second, last = stage_plans(llama_planner(), PIPELINE, [0, 1, 3])
    assert [each.stage for each in (first, second, last)] == [0, 1, 3]
    assert last.compute_s > first.compute_s, "the last has the loss"
    assert first.allocated_bytes > second.allocated_bytes, "the first holds one micro-batch more, and the embedding"
    for plan in (first, second, last):
        assert plan.allocated_bytes < plan.reserved_bytes < plan.device_bytes
        assert 0 < plan.once_s < 0.2 * plan.compute_s
