from __future__ import annotations

import pytest

from tests.doctor.runs import run_of
from zenith_tune.doctor.speed_advice import bubble_share, pipeline_bubble


def test_the_share_is_that_of_narayanan_2021_and_interleaving_divides_it() -> None:
    # GPipe's and 1F1B's bubble is (p-1)/m of the ideal time, (p-1)/m/v interleaved: figure 4 there has p=4, m=8, v=2.
    assert bubble_share(p=4, m=8) == pytest.approx((3 / 8) / (1 + 3 / 8))
    assert bubble_share(p=4, m=8, v=2) == pytest.approx((3 / 16) / (1 + 3 / 16))


def test_few_micro_batches_for_many_stages_are_reported_with_what_the_planner_says_of_fewer_stages() -> None:
    run = run_of("TP2 PP4 mbs1 SP Z1", gbs=8)
    advice = pipeline_bubble(run)
    assert advice is not None and advice.number == pytest.approx(3 / 11)
    for part in ("27%", "bubble", "(p-1)/(m+p-1)", "4 stages", "8 micro-batches"):
        assert part in advice.finding
    in_the_plan = f"{run.planned.time_parts['bubble'] / run.planned.step_s:.0%}"
    assert f"plan's {in_the_plan}" in advice.finding and f"bubble {in_the_plan}" in run.planned.bound
    (evaluated,) = run.planner.evaluate([advice.planned.layout])
    assert advice.gain == pytest.approx(run.planned.step_s / evaluated.step_s - 1) and advice.gain > 0.1
    assert advice.planned.layout.pp < 4 and "pp 4 -> 1" in advice.change


def test_an_interleaved_pipeline_is_reported_by_its_own_share() -> None:
    advice = pipeline_bubble(run_of("TP2 PP4 VP2 mbs1 SP Z1", gbs=8))
    assert advice is not None and advice.number == pytest.approx(3 / 19)
    assert all(part in advice.finding for part in ("(p-1)/(vm+p-1)", "4 stages", "2 chunks"))


def test_many_micro_batches_leave_nothing_to_say() -> None:
    assert pipeline_bubble(run_of("TP2 PP4 mbs1 SP Z1", gbs=64)) is None


def test_a_job_without_a_pipeline_has_no_bubble() -> None:
    assert pipeline_bubble(run_of("TP2 mbs1 SP Z1", gbs=4)) is None


def test_where_only_a_larger_batch_helps_it_is_advised_with_a_caution() -> None:
    # Fewer stages do not fit, and four micro-batches are too few to interleave eight stages.
    advice = pipeline_bubble(
        run_of("TP8 PP8 mbs1 SP Z1 full", model="llama3-70b", cluster="a100-40x64", gbs=4, seq_len=2048)
    )
    assert advice is not None and advice.change == "gbs 4 -> 8"
    assert advice.gain > 0.1 and "learning rate" in advice.caution
