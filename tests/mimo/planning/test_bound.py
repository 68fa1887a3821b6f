from __future__ import annotations

import time

import pytest

from tests.mimo.planning.jobs import SLOW, mimo_job, module
from zenith_mimo.planning import prediction
from zenith_mimo.planning.bound import LeastTimes
from zenith_mimo.planning.candidate import mimo_candidates
from zenith_mimo.planning.job import MimoJob
from zenith_mimo.planning.prediction import CLEARLY, plan_mimo, predict

JOBS = [
    mimo_job(6, language=module(8, 0.7), global_batch=24),
    mimo_job(6, language=module(8, 0.7), global_batch=24, items=(3, 0, 1), link=SLOW),
    mimo_job(6, encoder=module(4, 2.0), global_batch=36, items=(1, 0, 0, 2, 4)),
]


@pytest.mark.parametrize("job", JOBS)
def test_no_layout_is_faster_than_its_bound_and_most_come_near(job: MimoJob) -> None:
    least = LeastTimes(job)
    shares = []
    for candidate in mimo_candidates(job, mbs_max=2):
        found = predict(job, candidate)
        shares.append(least.of(candidate) / (found.step_s - found.sync_s))
    assert len(shares) > 50 and max(shares) < 1 + 1e-9
    assert sorted(shares)[len(shares) // 2] > 0.6


@pytest.mark.parametrize("job", JOBS)
def test_what_is_left_out_is_not_clearly_faster(job: MimoJob, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = plan_mimo(job, mbs_max=2)
    monkeypatch.setattr(prediction, "MOST_SIMULATED", 3)
    some = plan_mimo(job, mbs_max=2)
    assert some.num_slower > 0 and len(some.ranked) + some.num_slower == len(whole.ranked) + whole.num_slower
    assert some.ranked[0].step_s * (1 - CLEARLY) <= whole.ranked[0].step_s
    assert {each.candidate.kind for each in some.ranked} == {each.candidate.kind for each in whole.ranked}


def test_64_ranks_are_planned_in_seconds() -> None:
    job = mimo_job(64, encoder=module(8, 1.0), language=module(8, 3.0), global_batch=128, items=(2, 1, 3, 0))
    begin = time.process_time()
    plan = plan_mimo(job)
    assert time.process_time() - begin < 10.0
    assert plan.num_slower > len(plan.ranked) > 50
