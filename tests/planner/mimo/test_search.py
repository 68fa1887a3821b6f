from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.planner.mimo.jobs import SLOW, mimo_job, module
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.prediction import plan_mimo
from zenith_tune.planner.mimo.search import LEAST_HOMOGENEOUS, MOST_HOMOGENEOUS, SPREADS, MimoCorrection, MimoSearch

JOB = mimo_job(4, encoder=module(4, 1.0), items=(8, 0, 0, 0, 0, 0, 0, 0), link=SLOW)
PLAN = plan_mimo(JOB, mbs_max=2)


def searched(step_of: Callable[[MimoCandidate], float | None], *, top: int = 2) -> set[MimoCandidate]:
    """Run a search to its end, and return what it tried; None is a failure."""
    search = MimoSearch(PLAN, top=top)
    while (following := search.next()) is not None:
        step_s = step_of(following.prediction.candidate)
        search.learn(following.prediction.candidate, step_s, has_failed=step_s is None)
    return search.tried


def planned_s(candidate: MimoCandidate) -> float:
    found = PLAN.find(candidate)
    assert found is not None
    return found.step_s


def test_a_plan_that_is_right_is_followed_and_ends_soon() -> None:
    tried = searched(planned_s)
    best = [each.candidate for each in PLAN.ranked if not each.candidate.is_homogeneous][:2]
    assert {at for at in tried if not at.is_homogeneous} == set(best)
    alike = {at for at in tried if at.is_homogeneous}
    assert {each.candidate for each in PLAN.homogeneous[:LEAST_HOMOGENEOUS]} <= alike
    assert len(alike) < MOST_HOMOGENEOUS < len(PLAN.homogeneous)


def test_one_that_may_be_the_best_homogeneous_layout_is_tried_too() -> None:
    second, third = PLAN.homogeneous[1], PLAN.homogeneous[2]
    # The two that must be tried turn out slow: by the plan's own order a third may then be the best of them.
    slow = {each.candidate for each in PLAN.homogeneous[:2]}
    tried = searched(lambda at: planned_s(at) * (1.5 if at in slow else 1.0))
    assert third.step_s < 1.5 * second.step_s and third.candidate in tried
    assert sum(at.is_homogeneous for at in tried) <= MOST_HOMOGENEOUS


def test_failures_do_not_count_as_homogeneous_layouts_but_end() -> None:
    tried = searched(lambda at: None if at.is_homogeneous else planned_s(at))
    assert sum(at.is_homogeneous for at in tried) == MOST_HOMOGENEOUS


def test_a_dry_run_without_any_step_ends_with_the_least() -> None:
    search = MimoSearch(PLAN, top=1)
    while (following := search.next()) is not None:
        search.learn(following.prediction.candidate, None)
    assert len(search.tried) == 1 + LEAST_HOMOGENEOUS <= search.max_runs


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
    before, after = MimoCorrection([]).of(other), MimoCorrection([(first, 15 * first.step_s)]).of(other)
    assert before.step_s == pytest.approx(other.step_s) and before.spread > SPREADS[0]
    assert after.step_s == pytest.approx(15 * other.step_s, rel=0.25)
    assert after.spread < before.spread and after.least_s < after.step_s
