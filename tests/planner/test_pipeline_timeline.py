"""The timeline of a pipeline, against the formulas of its schedules."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.pipeline_timeline import MOST_SHOWN, Bar, pipeline_timeline, simulate
from zenith_tune.planner.planner import Planner

SUBJECT = PlanSubject(
    model=load_model("llama3-8b"),
    cluster=load_cluster("h100x8"),
    job=JobSpec(seq_len=4096, framework=load_framework("megatron")),
)
PLANNER = Planner(SUBJECT.model, SUBJECT.cluster, SUBJECT.job)
LAYOUT = Layout(num_gpus=8, tp=2, pp=4, micro_batch=1, global_batch=16, zero=1, sequence_parallel=True)


def end_s(bars: list[Bar]) -> float:
    return max(bar.end_s for bar in bars)


@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 8), (8, 8), (4, 3)])
def test_1f1b_takes_m_plus_p_minus_1_passes(p: int, m: int) -> None:
    assert end_s(simulate([1.0] * p, [2.0] * p, chunks=1, micro_batches=m)) == pytest.approx(3.0 * (m + p - 1))


@pytest.mark.parametrize(("p", "v", "m"), [(4, 2, 8), (2, 4, 4), (4, 3, 16)])
def test_interleaving_divides_the_bubble_by_its_chunks(p: int, v: int, m: int) -> None:
    bars = simulate([1.0] * p, [2.0] * p, chunks=v, micro_batches=m)
    assert end_s(bars) == pytest.approx(3.0 * m + 3.0 * (p - 1) / v)
    assert len(bars) == 2 * p * v * m


def test_a_stage_does_one_thing_at_a_time_and_nothing_before_what_it_needs() -> None:
    bars = simulate([1.0, 1.5, 1.0], [2.0, 3.0, 2.5], chunks=1, micro_batches=5)
    for stage in range(3):
        own = sorted((bar for bar in bars if bar.stage == stage), key=lambda bar: bar.start_s)
        assert all(one.end_s <= other.start_s + 1e-9 for one, other in pairwise(own))
    ends = {(bar.is_forward, bar.stage, bar.micro_batch): bar for bar in bars}
    for bar in bars:
        needed = (True, bar.stage - 1, bar.micro_batch) if bar.is_forward else (False, bar.stage + 1, bar.micro_batch)
        if needed in ends:
            assert ends[needed].end_s <= bar.start_s + 1e-9


def test_a_stage_holds_no_more_micro_batches_than_the_stages_behind_it_and_itself() -> None:
    bars = simulate([1.0] * 4, [2.0] * 4, chunks=1, micro_batches=8)
    for stage in range(4):
        held, most = 0, 0
        for bar in sorted((bar for bar in bars if bar.stage == stage), key=lambda bar: bar.start_s):
            held += 1 if bar.is_forward else -1
            most = max(most, held)
        assert most == 4 - stage


def test_the_timeline_ends_with_the_planned_step() -> None:
    (planned,) = PLANNER.evaluate([replace(LAYOUT, global_batch=12)])
    timeline = pipeline_timeline(SUBJECT, PLANNER.calibration, planned)
    assert timeline is not None
    assert end_s(list(timeline.bars)) + timeline.tail_s == pytest.approx(planned.step_s)
    assert timeline.shown_micro_batches == timeline.num_micro_batches == 12
    assert 0.1 < timeline.idle_share < 0.35


def test_recomputation_lengthens_the_backward_passes_alone() -> None:
    shares = []
    for layout in (LAYOUT, replace(LAYOUT, recompute="full/uniform", recompute_layers=1)):
        (planned,) = PLANNER.evaluate([layout])
        timeline = pipeline_timeline(SUBJECT, PLANNER.calibration, planned)
        assert timeline is not None
        forward = sum(bar.end_s - bar.start_s for bar in timeline.bars if bar.is_forward and bar.stage == 1)
        every = sum(bar.end_s - bar.start_s for bar in timeline.bars if bar.stage == 1)
        shares.append(forward / every)
    assert shares[0] == pytest.approx(1 / 3, abs=0.01)
    assert shares[1] == pytest.approx(1 / 4, abs=0.02)


def test_of_a_long_step_the_first_micro_batches_are_drawn() -> None:
    (planned,) = PLANNER.evaluate([replace(LAYOUT, global_batch=4096)])
    timeline = pipeline_timeline(SUBJECT, PLANNER.calibration, planned)
    assert timeline is not None
    assert timeline.num_micro_batches == 4096
    assert timeline.shown_micro_batches == MOST_SHOWN
    assert len(timeline.bars) == 2 * MOST_SHOWN * LAYOUT.pp


def test_without_a_pipeline_there_is_no_timeline() -> None:
    (planned,) = PLANNER.evaluate([replace(LAYOUT, pp=1)])
    assert pipeline_timeline(SUBJECT, PLANNER.calibration, planned) is None


def test_a_pipeline_of_two_stages_takes_turns() -> None:
    assert [round(bar.end_s) for bar in simulate([1.0, 1.0], [2.0, 2.0], chunks=1, micro_batches=1)] == [1, 2, 4, 6]
