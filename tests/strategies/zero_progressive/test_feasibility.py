from __future__ import annotations

import re

import pytest

from tests.strategies.zero_progressive.subjects import subject
from zenith_tune.strategies.zero_progressive.feasibility import (
    ActivationProfile,
    ZeroSetting,
    ZeroSubject,
    state_bytes,
    why_surely_too_large,
    why_too_large,
)
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import GIB


def ran(at: ZeroSubject, stage: int, mbs: int, activations: float, **others: bool) -> Trial:
    params = {"stage": stage, "mbs": mbs, **others}
    peak = round(at.states(params).total + activations)
    return Trial(params=params, outcome=Outcome.OK, value=1.0, peak_memory_bytes=peak)


def test_eight_billion_parameters_do_not_fit_a_gpu_of_80_gib_at_stage_0_and_the_arithmetic_says_so() -> None:
    why = why_surely_too_large(subject(), {"stage": 0, "mbs": 1})
    assert why is not None and re.search(r"activations .*5\.3 GiB .*micro-batch 1$", why)
    assert re.search(r"8\.03e9 .*\(2 \+ 2 \+ 16\) .*stage 0", why)
    assert why_surely_too_large(subject(), {"stage": 1, "mbs": 1}) is None


def test_bf16_is_the_16_bit_format_that_it_is() -> None:
    at = {"stage": 0, "mbs": 1}
    assert subject(precision="bf16").states(at).total == subject(precision="fp16").states(at).total
    assert subject(precision="fp32").states(at).weights == 2 * subject(precision="bf16").states(at).weights


def test_the_configuration_decides_about_gradients_offload_and_buckets() -> None:
    at, plain = {"stage": 2, "mbs": 1}, subject().states({"stage": 2, "mbs": 1})
    assert subject(data_types={"grad_accum_dtype": "fp32"}).states(at).gradients == 2 * plain.gradients
    assert subject(zero_optimization={"offload_optimizer": {"device": "cpu"}}).states(at).optimizer == 0
    assert subject(zero_optimization={"cpu_offload": True}).states(at).optimizer == 0
    assert subject(zero_optimization={"reduce_bucket_size": 1e9}).states(at).buffers == 2 * plain.buffers
    assert subject().states({**at, "reduce_bucket_size": 1_000_000_000}).buffers == 2 * plain.buffers


def test_a_points_own_values_go_before_those_of_the_configuration() -> None:
    job = subject(zero_optimization={"stage": 3, "offload_optimizer": {"device": "cpu"}})
    kept = job.states({"stage": 1, "mbs": 1, "offload_optimizer": "none"})
    assert kept.optimizer == pytest.approx(16 * job.model.num_params / 8)


def test_the_profiling_run_is_scaled_to_other_micro_batches_and_other_stages() -> None:
    job = subject()
    profile = ActivationProfile(job)
    assert not profile.is_measured({"mbs": 1})
    profile.observe(ran(job, stage=3, mbs=2, activations=6 * GIB))
    assert profile.activations({"stage": 1, "mbs": 8}) == pytest.approx(24 * GIB)
    assert profile.largest({"stage": 3, "mbs": 1}, [1, 2, 4, 8, 16, 32]) == 16
    why = profile.why_not({"stage": 3, "mbs": 32})
    assert why is not None and re.search(r"activations measured .*96\.0 GiB .*micro-batch 32", why)


def test_two_runs_show_activations_whatever_the_states_really_take() -> None:
    job = subject()
    profile = ActivationProfile(job)
    for mbs in (1, 4):
        profile.observe(ran(job, stage=2, mbs=mbs, activations=(3 * mbs - 5) * GIB))
    assert profile.activations({"stage": 2, "mbs": 10}) == pytest.approx(30 * GIB)


def test_states_that_take_less_than_predicted_are_scaled_everywhere() -> None:
    job = subject()
    profile, at = ActivationProfile(job), {"stage": 2, "mbs": 1}
    for mbs in (1, 2):
        peak = round(0.8 * job.states(at).total + 3 * GIB * mbs)
        profile.observe(Trial(params={"stage": 2, "mbs": mbs}, outcome=Outcome.OK, value=1.0, peak_memory_bytes=peak))
    assert profile.needed({"stage": 3, "mbs": 4}) == pytest.approx(
        0.8 * job.states({"stage": 3, "mbs": 4}).total + 12 * GIB
    )
    assert "80%" in str(profile.why_not({"stage": 2, "mbs": 32}))


def test_a_peak_below_the_states_leaves_activations_to_the_planner() -> None:
    job = subject()
    profile = ActivationProfile(job)
    peak = round(0.9 * job.states({"stage": 2, "mbs": 1}).total)
    profile.observe(Trial(params={"stage": 2, "mbs": 1}, outcome=Outcome.OK, value=1.0, peak_memory_bytes=peak))
    assert profile.activations({"mbs": 1}) == job.planned_activations({"mbs": 1})
    assert profile.needed({"stage": 2, "mbs": 1}) == pytest.approx(peak)


def test_nothing_is_pruned_that_may_fit_without_passing_copies() -> None:
    # 16 bytes per parameter instead of 20 would do, and half of the activations.
    job = subject(cluster="h100x8")
    states = job.states({"stage": 2, "mbs": 1}).total
    sizes = [mbs for mbs in range(1, 40) if why_surely_too_large(job, {"stage": 2, "mbs": mbs}) is None]
    activations = job.planned_activations({"mbs": sizes[-1] + 1}) / 2
    assert states + activations > 1.25 * job.capacity_bytes >= states + job.planned_activations({"mbs": sizes[-1]}) / 2


def test_recomputed_activations_are_measured_by_themselves() -> None:
    job = subject()
    profile = ActivationProfile(job)
    profile.observe(ran(job, stage=2, mbs=1, activations=4 * GIB, checkpointing=False))
    assert not profile.is_measured({"mbs": 1, "checkpointing": True})
    assert profile.activations({"stage": 2, "mbs": 1, "checkpointing": True}) < 4 * GIB


def test_without_a_run_the_planners_figure_serves() -> None:
    job = subject()
    profile = ActivationProfile(job)
    profile.observe(Trial(params={"stage": 2, "mbs": 1}, outcome=Outcome.OK, value=1.0))
    profile.observe(Trial(params={"stage": 2, "mbs": 1}, outcome=Outcome.OOM))
    assert profile.activations({"stage": 2, "mbs": 4}) == job.planned_activations({"mbs": 4}) > 0
    assert job.planned_activations({"mbs": 4}) == pytest.approx(4 * job.planned_activations({"mbs": 1}), rel=0.05)


def test_what_just_fits_is_not_refused() -> None:
    job, at = subject(), {"stage": 3, "mbs": 1}
    room = job.capacity_bytes - job.states(at).total
    assert why_too_large(job, at, room, "measured") is None
    assert why_too_large(job, at, room + GIB, "measured") is not None


def test_what_was_measured_overrules_what_is_predicted_too_large() -> None:
    job = subject(model="llama3.2-1b", seq=16384)
    sizes = [1, 2, 4, 8, 16, 32, 64]
    pruned = next(mbs for mbs in sizes if why_surely_too_large(job, {"stage": 2, "mbs": mbs}) is not None)
    memory = ActivationProfile(job)
    assert memory.why_hopeless({"stage": 2, "mbs": pruned}) is not None
    small = 0.02 * job.capacity_bytes
    for mbs in (1, 2):
        memory.observe(ran(job, 2, mbs, small * mbs))
    assert memory.why_hopeless({"stage": 2, "mbs": pruned}) is None
    assert memory.why_hopeless({"stage": 2, "mbs": 128}) is not None, "what was measured rules out, too"


def test_states_match_the_zero_paper() -> None:
    seven_billion = ZeroSetting(stage=1, num_ranks=64, num_params=7_500_000_000, reduce_bucket_size=0)
    assert [
        round(part / 1e9, 1) for part in (state_bytes(seven_billion).weights, state_bytes(seven_billion).optimizer)
    ] == [15.0, 1.9]
