from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.mimo.planning.jobs import SLOW, mimo_job, module
from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.config import ModuleLayout
from zenith_mimo.planning.prediction import (
    activation_numbers,
    better_batch,
    peak_memory_bytes,
    plan_mimo,
    state_bytes,
)
from zenith_tune.errors import UsageError


def test_the_ranking_goes_by_the_predicted_step_and_has_every_layout() -> None:
    plan = plan_mimo(mimo_job(4, items=(3, 0)), mbs_max=2)
    steps = [each.step_s for each in plan.ranked]
    assert len(steps) > 20 and steps == sorted(steps)
    assert plan.num_too_large == 0
    assert [each for each in plan.ranked if each.candidate.is_homogeneous] == plan.homogeneous
    assert plan.find(plan.ranked[5].candidate) is plan.ranked[5]


def test_even_lanes_leave_nothing_to_gain_and_uneven_ones_do() -> None:
    even = plan_mimo(mimo_job(4, encoder=module(4, 1.0)))
    uneven = plan_mimo(mimo_job(4, encoder=module(4, 1.0), items=(8, 0, 0, 0, 0, 0, 0, 0), link=SLOW))
    assert even.ranked[0].step_s == pytest.approx(even.homogeneous[0].step_s)
    assert uneven.ranked[0].step_s < 0.98 * uneven.homogeneous[0].step_s


def test_the_encoder_gets_the_ranks_that_balance_the_modules() -> None:
    splits = []
    for encoder_flops in (1 / 3, 1.0, 3.0):
        encoder, language = module(6, encoder_flops), module(6, 1.0)
        job = mimo_job(4, encoder=encoder, language=language, global_batch=96, can_share_ranks=False)
        splits.append(plan_mimo(job, mbs_max=1).ranked[0].candidate.encoder_ranks)
    assert splits == [1, 2, 3]


def test_what_does_not_fit_recomputes_or_is_left_out() -> None:
    job = mimo_job(4)
    plain = plan_mimo(job)
    sizes = sorted(each.memory_bytes for each in plain.ranked)
    limit = sizes[len(sizes) // 8]
    tight = plan_mimo(replace(job, device=replace(job.device, memory_bytes=limit)))
    assert all(each.memory_bytes <= limit for each in tight.ranked)
    assert tight.num_too_large > 0
    assert len(tight.ranked) + tight.num_too_large == len(plain.ranked)
    recomputing = [
        each for each in tight.ranked if each.candidate.language_recompute or each.candidate.encoder_recompute
    ]
    assert recomputing
    for each in recomputing:
        at = replace(each.candidate, language_recompute=False, encoder_recompute=False)
        assert peak_memory_bytes(job, at) > limit


def test_a_job_that_fits_nowhere_says_what_the_smallest_layout_needs() -> None:
    job = mimo_job(2)
    with pytest.raises(UsageError, match=r"9\.31e-10 GiB.*smallest of \d+"):
        plan_mimo(replace(job, device=replace(job.device, memory_bytes=1.0)))


def test_a_job_without_any_layout_is_refused() -> None:
    odd = (("the heads", 1),)
    with pytest.raises(UsageError, match=r"\b3 ranks\b.*\b1\b"):
        plan_mimo(mimo_job(3, global_batch=1, encoder=module(1, 1.0, widths=odd), language=module(1, 1.0, widths=odd)))


def test_states_are_split_by_tp_and_pp_and_shared_out_by_the_optimizer() -> None:
    device = replace(mimo_job().device, state_bytes=16.0, sharded_bytes=8.0)
    work = module(4, 1.0)
    assert state_bytes(work, ModuleLayout(), 0, device) == 4 * 1010 * 16
    assert state_bytes(work, ModuleLayout(tp=2, pp=2), 0, device) == 2 * 510 * 16
    assert state_bytes(work, ModuleLayout(dp=4), 0, device) == 4 * 1010 * (8 + 8 / 4)


def test_earlier_stages_keep_more_micro_batches() -> None:
    job = mimo_job(3, encoder=module(1, 1.0), language=module(2, 1.0))
    at = MimoCandidate.of(3, encoder=(1, 1), language=(1, 2), encoder_ranks=1, micro_batch=1)
    # The encoder runs two micro-batches ahead of the loss, and all three modules have one layer a rank.
    one = activation_numbers(job.encoder, at.encoder, 0, recompute=False)
    assert peak_memory_bytes(job, at) == 1010 * 16 + 3 * one * 4


def test_another_batch_is_suggested_where_the_batch_keeps_the_ranks_from_a_balanced_split() -> None:
    # One layer of the encoder and two of the language model: a third of three ranks is the encoder's, and its two lanes
    # of the language model need an even batch.
    balanced: dict[str, Any] = {"encoder": module(1, 1.0), "language": module(1, 2.0, widths=(("the heads", 1),))}
    odd = mimo_job(3, global_batch=9, can_share_ranks=False, **balanced)
    found = better_batch(odd, plan_mimo(odd))
    assert found is not None
    size, best = found
    assert size in (8, 10) and (best.candidate.encoder.size, best.candidate.language.dp) == (1, 2)
    even = mimo_job(3, global_batch=8, can_share_ranks=False, **balanced)
    assert better_batch(even, plan_mimo(even)) is None
