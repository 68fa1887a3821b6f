"""A plan that cannot be that of the run is a mismatch, and a layout that its model cannot have is refused."""

from __future__ import annotations

import pytest

from tests.doctor.runs import run_of
from zenith_tune.doctor.diagnosed_run import Measured, RunOrigin
from zenith_tune.doctor.diagnosis import diagnose, diagnosis_lines, plan_mismatch
from zenith_tune.doctor.speed_advice import small_micro_batch
from zenith_tune.errors import UsageError

GOOD = "TP2 mbs1 SP Z1"
SUSPECTS = ("model=", "--cluster")


def suspects(mismatch: str | None) -> list[str]:
    """Return which of the user's options a mismatch questions."""
    assert mismatch is not None and mismatch.endswith("?")
    return [name for name in SUSPECTS if name in mismatch]


@pytest.mark.parametrize(("share", "off"), [(0.18, "82% off"), (1.6, "60% off")])
def test_a_step_that_is_far_from_the_plan_is_a_mismatch_and_not_called_well(share: float, off: str) -> None:
    planned = run_of(GOOD).planned
    found = diagnose(run_of(GOOD, measured=Measured(step_s=share * planned.step_s)))
    (line,) = diagnosis_lines(found)
    assert off in line and suspects(line) == [*SUSPECTS] and not found.is_healthy


@pytest.mark.parametrize("share", [0.6, 1.0, 1.4])
def test_a_step_near_the_plan_is_no_mismatch(share: float) -> None:
    assert plan_mismatch(run_of(GOOD, measured=Measured(step_s=share * run_of(GOOD).planned.step_s))) is None


def test_a_run_that_went_well_without_the_memory_that_is_planned_is_a_mismatch() -> None:
    large = run_of(GOOD, model="llama3-70b")
    assert plan_mismatch(large) is None, "nothing was measured"
    mismatch = plan_mismatch(run_of(GOOD, model="llama3-70b", measured=Measured(step_s=large.planned.step_s)))
    assert mismatch is not None and "of 79.1 GiB" in mismatch and "% off" not in mismatch
    assert suspects(mismatch) == [*SUSPECTS]


@pytest.mark.parametrize(
    ("origin", "asked"),
    [
        (RunOrigin(), [*SUSPECTS]),
        (RunOrigin(model="llama3-8b"), ["model="]),
        (RunOrigin(cluster="h100x8"), ["--cluster"]),
        (RunOrigin(model="llama3-8b", cluster="h100x8"), [*SUSPECTS]),
    ],
)
def test_what_the_user_said_of_the_run_is_what_may_be_wrong(origin: RunOrigin, asked: list[str]) -> None:
    mismatch = plan_mismatch(run_of(GOOD, origin=origin, measured=Measured(step_s=0.1)))
    assert suspects(mismatch) == asked


def test_a_plan_that_mismatches_stands_behind_no_advice() -> None:
    slow = "TP2 PP4 mbs1 SP Z1 selective"
    planned = run_of(slow, gbs=8).planned
    matching = diagnose(run_of(slow, gbs=8, measured=Measured(step_s=planned.step_s)))
    assert [advice.name for advice in matching.advice] == ["pipeline_bubble", "idle_recompute"]
    mismatching = diagnose(run_of(slow, gbs=8, measured=Measured(step_s=0.1 * planned.step_s)))
    (line,) = diagnosis_lines(mismatching)
    assert mismatching.advice == () and "90% off" in line


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
    ("layout", "parts"),
    [
        ("EP4 mbs1 Z1", ("llama3-8b", "EP4 DP8 Z1 mbs1", "ep must be 1", "experts", "got 4")),
        ("TP2 PP2 EP2 mbs1 SP Z1", ("ep must be 1", "experts", "got 2")),
    ],
)
def test_a_layout_that_the_model_cannot_have_is_refused_in_one_line(layout: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        run_of(layout)
    assert all(part in caught.value.problem for part in parts) and "model" in caught.value.hint


def test_a_full_memory_that_no_change_relieves_is_reported_all_the_same() -> None:
    layout = "TP8 PP2 mbs1 SP Z1 full"
    base = run_of(layout, model="llama3-70b", cluster="h100x16", gbs=16)
    peak = base.planned.capacity_bytes - base.planner.calibration.memory.context_bytes
    full = Measured(step_s=base.planned.roomy_s * base.slowdown(base.planned.capacity_bytes), peak_bytes=peak)
    found = diagnose(run_of(layout, model="llama3-70b", cluster="h100x16", gbs=16, measured=full))
    (line,) = diagnosis_lines(found)
    assert "100.0% full (79.1 of 79.1 GiB, measured)" in line and "more GPUs" in line
    assert not found.is_healthy
