from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.mimo.planning.jobs import SLOW, mimo_job, module
from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.job import MimoJob
from zenith_mimo.planning.prediction import MimoPlan, plan_mimo
from zenith_mimo.planning.search import (
    LEAST_OF_KIND,
    MOST_OF_KIND,
    NOISE,
    SPREADS,
    MeasuredLayout,
    MimoCorrection,
    MimoSearch,
)

UNEVEN = (8, 0, 0, 0, 0, 0, 0, 0)
JOB = mimo_job(4, encoder=module(4, 1.0), items=UNEVEN, link=SLOW)
PLAN = plan_mimo(JOB, mbs_max=2)


def searched(step_of: Callable[[MimoCandidate], float | None], *, top: int = 2) -> list[MimoCandidate]:
    """Run a search to its end, and return what it tried in order; None is a failure."""
    search, tried = MimoSearch(PLAN, top=top), []
    while (following := search.next()) is not None:
        step_s = step_of(following.prediction.candidate)
        search.learn(following.prediction.candidate, step_s, has_failed=step_s is None)
        tried.append(following.prediction.candidate)
    assert len(tried) <= search.max_runs
    return tried


def planned_s(candidate: MimoCandidate, plan: MimoPlan = PLAN) -> float:
    found = plan.find(candidate)
    assert found is not None
    return found.step_s


@pytest.mark.parametrize(
    "job",
    [
        JOB,
        mimo_job(2),
        mimo_job(4),
        mimo_job(4, items=(2, 1, 3, 0)),
        mimo_job(6, encoder=module(4, 2.0), global_batch=12),
        mimo_job(8, items=UNEVEN, global_batch=16, link=SLOW),
        mimo_job(8, encoder=module(8, 3.0), global_batch=16, can_share_ranks=False),
        mimo_job(12, language=module(12, 1.0), global_batch=24, can_share_ranks=False, can_pipeline_encoder=False),
    ],
    ids=lambda job: f"{job.num_ranks} ranks, {len(job.items)} items",
)
def test_the_best_on_paper_runs_first_whatever_its_kind(job: MimoJob) -> None:
    plan = plan_mimo(job)
    search, picks = MimoSearch(plan, top=3), []
    for _ in range(2):
        following = search.next()
        assert following is not None
        search.learn(following.prediction.candidate, following.prediction.step_s)
        picks.append(following.prediction)
    best = plan.ranked[0]
    # Of those as fast within the spread of a run a homogeneous one is first, and the best then second.
    assert picks[0].step_s <= (1 + NOISE) * best.step_s
    assert best in (picks[:1] if best.candidate.is_homogeneous else picks)
    assert picks[0] == best or picks[0].candidate.is_homogeneous


def test_ties_go_to_the_homogeneous_layout_and_nothing_slower_does() -> None:
    best, other = (
        next(each for each in PLAN.ranked if each.candidate.is_homogeneous == is_alike) for is_alike in (0, 1)
    )
    for factor, first in ((1 + 0.9 * NOISE, other), (1 + 1.1 * NOISE, best)):
        slower = replace(other, idle_s=other.idle_s + factor * best.step_s - other.step_s)
        following = MimoSearch(MimoPlan(ranked=(best, slower), num_too_large=0), top=2).next()
        assert following is not None and following.prediction.candidate == first.candidate


def test_a_plan_that_is_right_is_followed_and_ends_soon() -> None:
    tried = searched(planned_s)
    assert tried[0] == PLAN.ranked[0].candidate
    alike = {at for at in tried if at.is_homogeneous}
    assert {each.candidate for each in PLAN.homogeneous[:LEAST_OF_KIND]} <= alike
    assert len(tried) < 2 + MOST_OF_KIND < len(PLAN.ranked)


def test_the_search_continues_while_a_layout_may_be_faster_than_all_that_have_run() -> None:
    # What shares ranks, or does not, as the best on paper does takes three times as long as planned.
    kind = PLAN.ranked[0].candidate.is_colocated
    tried = searched(lambda at: planned_s(at) * (3.0 if at.is_colocated == kind else 1.0), top=1)
    assert tried[0] == PLAN.ranked[0].candidate
    assert next(each.candidate for each in PLAN.ranked if each.candidate.is_colocated != kind) in tried


def test_one_that_may_be_the_best_homogeneous_layout_is_tried_too() -> None:
    second, third = PLAN.homogeneous[1], PLAN.homogeneous[2]
    # The two that must be tried turn out slow: by the plan's own order a third may then be the best of them.
    slow = {each.candidate for each in PLAN.homogeneous[:2]}
    tried = searched(lambda at: planned_s(at) * (1.5 if at in slow else 1.0))
    assert third.step_s < 1.5 * second.step_s and third.candidate in tried
    assert sum(at.is_homogeneous for at in tried) <= MOST_OF_KIND


def test_failures_do_not_count_as_homogeneous_layouts_but_end() -> None:
    tried = searched(lambda at: None if at.is_homogeneous else planned_s(at))
    assert LEAST_OF_KIND < sum(at.is_homogeneous for at in tried) <= MOST_OF_KIND


def test_a_dry_run_without_any_step_ends_with_the_least() -> None:
    search = MimoSearch(PLAN, top=1)
    while (following := search.next()) is not None:
        search.learn(following.prediction.candidate, None)
    assert sum(at.is_homogeneous for at in search.tried) == LEAST_OF_KIND
    assert len(search.tried) == 2 * LEAST_OF_KIND <= search.max_runs


def test_every_run_corrects_the_ranking_of_what_is_left() -> None:
    # Whatever has modules on ranks of their own takes twice as long as planned.
    search = MimoSearch(PLAN, top=1)
    apart = next(each.candidate for each in PLAN.ranked if not each.candidate.is_colocated)
    shared = [each.candidate for each in PLAN.ranked if each.candidate.is_colocated][-1]
    for each in [each for each in PLAN.ranked if each.candidate not in (apart, shared)][::3]:
        search.learn(each.candidate, each.step_s * (1.0 if each.candidate.is_colocated else 2.0))
    after = {prediction.candidate: expected.step_s for prediction, expected in search.ranked()}
    assert after[apart] == pytest.approx(2 * planned_s(apart), rel=0.3)
    assert after[shared] == pytest.approx(planned_s(shared), rel=0.2)
    assert list(after.values()) == sorted(after.values())


def test_a_guessed_speed_is_corrected_at_once() -> None:
    first, *others = PLAN.ranked
    other = next(each for each in others if each.candidate.is_colocated == first.candidate.is_colocated)
    before, after = MimoCorrection([]).of(other), MimoCorrection([MeasuredLayout(first, 15 * first.step_s)]).of(other)
    assert before.step_s == pytest.approx(other.step_s) and before.spread > SPREADS[0]
    assert after.step_s == pytest.approx(15 * other.step_s, rel=0.25)
    assert after.spread < before.spread and after.least_s < after.step_s


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_layouts_of_both_kinds_run_before_the_search_ends(num_ranks: int) -> None:
    plan = plan_mimo(mimo_job(num_ranks, encoder=module(4, 1.0)), mbs_max=1)
    search = MimoSearch(plan, top=1)
    while (following := search.next()) is not None:
        search.learn(following.prediction.candidate, following.prediction.step_s)
    kinds = [each.is_homogeneous for each in search.tried]
    for is_homogeneous in (True, False):
        planned = [each for each in plan.ranked if each.candidate.is_homogeneous == is_homogeneous]
        assert kinds.count(is_homogeneous) >= min(LEAST_OF_KIND, len(planned)) > 0


def test_the_noisier_the_runs_the_longer_the_search_looks() -> None:
    plan, numbers = plan_mimo(mimo_job(4)), []
    for noise in (0.0, 0.2):
        search = MimoSearch(plan, top=2)
        while (following := search.next()) is not None:
            search.learn(following.prediction.candidate, following.prediction.step_s, noise=noise)
        numbers.append(len(search.tried))
    assert numbers[0] < numbers[1] <= search.max_runs
