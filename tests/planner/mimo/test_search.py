from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.planner.mimo.jobs import SLOW, mimo_job, module
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.planner.mimo.plan import MimoPlan, plan_mimo
from zenith_tune.planner.mimo.search import (
    LEAST_HOMOGENEOUS,
    MOST_HOMOGENEOUS,
    MimoCorrection,
    MimoSearch,
    probe_layouts,
)

JOB = mimo_job(4, encoder=module(4, 1.0), items=(8, 0, 0, 0, 0, 0, 0, 0), link=SLOW)


def plan_for(job: MimoJob) -> MimoPlan:
    return plan_mimo(job, mbs_max=2)


PLAN = plan_for(JOB)


def searched(step_of: Callable[[MimoCandidate], float | None], *, top: int = 2, measures: bool = False) -> MimoSearch:
    """Run a search to its end; None is a failure."""
    search = MimoSearch(JOB, plan_for, top=top, measures=measures)
    while (following := search.next()) is not None:
        step_s = step_of(following.prediction.at)
        search.learn(following.prediction.at, step_s, has_failed=step_s is None)
    return search


def tried(search: MimoSearch) -> set[MimoCandidate]:
    return search._tried


def planned_s(at: MimoCandidate) -> float:
    found = PLAN.at(at)
    assert found is not None
    return found.step_s


def test_a_plan_that_is_right_is_followed_and_ends_soon() -> None:
    search = searched(planned_s)
    best = [each.at for each in PLAN.ranked if not each.at.is_homogeneous][:2]
    assert {at for at in tried(search) if not at.is_homogeneous} == set(best)
    alike = {at for at in tried(search) if at.is_homogeneous}
    assert {each.at for each in PLAN.homogeneous[:LEAST_HOMOGENEOUS]} <= alike
    assert len(alike) < MOST_HOMOGENEOUS < len(PLAN.homogeneous)


def test_one_that_may_be_the_best_homogeneous_layout_is_tried_too() -> None:
    second, third = PLAN.homogeneous[1], PLAN.homogeneous[2]
    # The two that must be tried turn out slow: by the plan's own order a third may then be the best of them.
    slow = {each.at for each in PLAN.homogeneous[:2]}
    search = searched(lambda at: planned_s(at) * (1.5 if at in slow else 1.0))
    assert third.step_s < 1.5 * second.step_s and third.at in tried(search)
    assert sum(at.is_homogeneous for at in tried(search)) <= MOST_HOMOGENEOUS


def test_failures_do_not_count_as_homogeneous_layouts_but_end() -> None:
    search = searched(lambda at: None if at.is_homogeneous else planned_s(at))
    assert sum(at.is_homogeneous for at in tried(search)) == MOST_HOMOGENEOUS


def test_a_dry_run_without_any_step_ends_with_the_least() -> None:
    search = MimoSearch(JOB, plan_for, top=1, measures=True)
    probes = []
    while (following := search.next()) is not None:
        search.learn(following.prediction.at, None)
        probes += [following.prediction.at] if following.is_probe else []
    assert probes == [each.at for each in probe_layouts(PLAN)]
    assert len(tried(search)) == len(probes) + 1 and len(tried(search)) <= search.max_runs


def test_every_run_corrects_the_ranking_of_what_is_left() -> None:
    # Whatever has modules on ranks of their own takes twice as long as planned.
    search = MimoSearch(JOB, plan_for, top=1, measures=False)
    apart = next(each.at for each in PLAN.ranked if not each.at.is_colocated)
    shared = [each.at for each in PLAN.ranked if each.at.is_colocated][-1]
    for each in [each for each in PLAN.ranked if each.at not in (apart, shared)][::3]:
        search.learn(each.at, each.step_s * (1.0 if each.at.is_colocated else 2.0))
    after = search.ranked()
    assert after[apart].step_s == pytest.approx(2 * planned_s(apart), rel=0.3)
    assert after[shared].step_s == pytest.approx(planned_s(shared), rel=0.2)


def test_probes_show_both_modules_whole_and_split_in_two() -> None:
    probes = [each.at for each in probe_layouts(PLAN)]
    assert [(at.encoder.tp, at.language.tp) for at in probes] == [(1, 1), (1, 1), (2, 2)]
    assert [at.micro_batch for at in probes] == [2, 1, 2]
    assert all(at.is_colocated and at.is_homogeneous for at in probes)


def test_without_shared_ranks_probes_have_ranks_of_their_own() -> None:
    probes = [each.at for each in probe_layouts(plan_for(mimo_job(4, can_share_ranks=False)))]
    assert probes and all(not at.is_colocated for at in probes)
    assert {at.encoder.tp for at in probes} == {1, 2}


def test_a_guessed_speed_is_corrected_at_once_and_a_known_one_is_trusted_more() -> None:
    seen = [(PLAN.ranked[0], 15 * PLAN.ranked[0].step_s)]
    other = next(
        each
        for each in PLAN.ranked
        if each.at.is_colocated == PLAN.ranked[0].at.is_colocated and each is not PLAN.ranked[0]
    )
    guessed = MimoCorrection(seen, is_guessed=True).of(other)
    known = MimoCorrection([], is_guessed=False).of(other)
    assert guessed.step_s == pytest.approx(15 * other.step_s, rel=0.25)
    assert known.step_s == pytest.approx(other.step_s)
    assert known.spread < MimoCorrection([], is_guessed=True).of(other).spread
    assert known.least_s < known.step_s
