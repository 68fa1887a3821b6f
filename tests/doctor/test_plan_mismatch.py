"""A plan that cannot be that of the run is doubted, and a layout that its model cannot have is refused."""

from __future__ import annotations

import pytest

from tests.doctor.runs import run_of
from zenith_tune.doctor.diagnosed_run import Measured, RunOrigin
from zenith_tune.doctor.diagnosis import diagnose, diagnosis_lines, plan_mismatch
from zenith_tune.doctor.speed_advice import small_micro_batch
from zenith_tune.errors import UsageError

GOOD = "TP2 mbs1 SP Z1"
OF_MODEL, OF_CLUSTER = "model= the one that was trained", "--cluster the one that it ran on"
ASKED = f"is {OF_MODEL}, and {OF_CLUSTER}?"


@pytest.mark.parametrize(("share", "words"), [(0.18, "82% off"), (1.6, "60% off")])
def test_a_step_that_is_far_from_the_plan_is_doubted_and_not_called_well(share: float, words: str) -> None:
    planned = run_of(GOOD).planned
    found = diagnose(run_of(GOOD, measured=Measured(step_s=share * planned.step_s)))
    assert diagnosis_lines(found) == [f"the plan is {words}: {ASKED}"] and not found.is_healthy


@pytest.mark.parametrize("share", [0.6, 1.0, 1.4])
def test_a_step_near_the_plan_is_not_doubted(share: float) -> None:
    assert plan_mismatch(run_of(GOOD, measured=Measured(step_s=share * run_of(GOOD).planned.step_s))) is None


def test_a_run_that_went_well_without_the_memory_that_is_planned_is_doubted() -> None:
    large = run_of(GOOD, model="llama3-70b")
    assert plan_mismatch(large) is None, "nothing was measured"
    doubt = plan_mismatch(run_of(GOOD, model="llama3-70b", measured=Measured(step_s=large.planned.step_s)))
    assert doubt is not None and "of 79.1 GiB, although the run went well" in doubt and doubt.endswith(ASKED)


@pytest.mark.parametrize(
    ("origin", "asked"),
    [
        (RunOrigin(), ASKED),
        (RunOrigin(model="llama3-8b"), f"is {OF_MODEL}?"),
        (RunOrigin(cluster="h100x8"), f"is {OF_CLUSTER}?"),
        (RunOrigin(model="llama3-8b", cluster="h100x8"), ASKED),
    ],
)
def test_what_the_user_said_of_the_run_is_what_may_be_wrong(origin: RunOrigin, asked: str) -> None:
    doubt = plan_mismatch(run_of(GOOD, origin=origin, measured=Measured(step_s=0.1)))
    assert doubt is not None and doubt.endswith(f"off: {asked}")


def test_a_plan_that_is_doubted_stands_behind_no_advice() -> None:
    slow = "TP2 PP4 mbs1 SP Z1 selective"
    planned = run_of(slow, gbs=8).planned
    believed = diagnose(run_of(slow, gbs=8, measured=Measured(step_s=planned.step_s)))
    assert [advice.name for advice in believed.advice] == ["pipeline_bubble", "idle_recompute"]
    doubted = diagnose(run_of(slow, gbs=8, measured=Measured(step_s=0.1 * planned.step_s)))
    assert doubted.advice == () and diagnosis_lines(doubted) == [f"the plan is 90% off: {ASKED}"]


def test_nothing_is_advised_that_runs_out_of_memory_whatever_went_well() -> None:
    large = run_of("mbs4", gbs=16, seq_len=32, cluster="h100x2", framework="hf-accelerate")
    run = run_of("mbs4", gbs=16, seq_len=32, cluster="h100x2", framework="hf-accelerate", measured=Measured(step_s=1.0))
    assert large.planned.oom_probability == 1.0 and not run.fits(run.planned)
    assert small_micro_batch(run) is None


def test_a_memory_that_was_measured_full_explains_a_long_step() -> None:
    base = run_of(GOOD)
    peak = 0.995 * base.planned.capacity_bytes - base.planner.calibration.memory.context_bytes
    found = diagnose(run_of(GOOD, measured=Measured(step_s=40.0, peak_bytes=peak)))
    assert [advice.name for advice in found.advice][:1] == ["full_memory"]


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("EP4 mbs1 Z1", "llama3-8b cannot run as EP4 DP8 Z1 mbs1, because ep must be 1 for a model without experts"),
        ("TP2 PP2 EP2 mbs1 SP Z1", "because ep must be 1 for a model without experts, but got 2"),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_refused_in_one_line(layout: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_of(layout)
    assert words in str(caught.value) and "give the model that was trained" in str(caught.value)


def test_a_full_memory_that_no_change_relieves_is_told_all_the_same() -> None:
    layout = "TP8 PP2 mbs1 SP Z1 full"
    base = run_of(layout, model="llama3-70b", cluster="h100x16", gbs=16)
    peak = base.planned.capacity_bytes - base.planner.calibration.memory.context_bytes
    full = Measured(step_s=base.planned.roomy_s * base.slowdown(base.planned.capacity_bytes), peak_bytes=peak)
    found = diagnose(run_of(layout, model="llama3-70b", cluster="h100x16", gbs=16, measured=full))
    (line,) = diagnosis_lines(found)
    assert line.startswith("the memory is 100.0% full (79.1 of 79.1 GiB, measured)") and "no single change" in line
    assert not found.is_healthy
