"""A run is held against the nearest published one, and the gap between them adds up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.doctor.runs import run_of
from zenith_tune.calibrate.published_runs import published_runs
from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.doctor.causes.cause import Cause, CauseKind
from zenith_tune.doctor.diagnosed_run import Measured
from zenith_tune.doctor.diagnosis_input import DiagnosisInput
from zenith_tune.doctor.published_gap import SOFTWARE, NotCompared, SpeedGap, published_gap
from zenith_tune.doctor.speed_gap import GapCause
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.levers import Lever
from zenith_tune.units import GIB

SLOW = "TP8 PP4 mbs1 Z1 full"


def gap_of(run: DiagnosisInput, *levers: Lever) -> SpeedGap:
    found = published_gap(run, levers)
    assert isinstance(found, SpeedGap)
    assert math.prod(cause.factor for cause in found.causes) == pytest.approx(found.ratio)
    assert sum(found.share(cause) for cause in found.causes) == pytest.approx(1.0)
    return found


def named(gap: SpeedGap, name: str) -> GapCause:
    return next(cause for cause in gap.causes if cause.name == name)


def slow_run(step_s: float | None, *causes: Cause, peak_bytes: float | None = None) -> DiagnosisInput:
    measured = Measured(step_s=step_s, causes=causes, peak_bytes=peak_bytes)
    return run_of(SLOW, model="llama3-70b", cluster="h100x32", gbs=128, seq_len=4096, measured=measured)


def test_the_nearest_run_is_of_the_same_model_gpu_and_precision() -> None:
    other = gap_of(slow_run(30.0)).other
    model, job = other.subject.model, other.subject.job
    assert (model.num_layers, model.hidden) == (80, 8192)
    assert (other.subject.cluster.gpu.name, job.precision, job.framework.name) == ("h100", "bf16", "megatron")


def test_a_slow_run_that_recomputes_is_told_so_before_what_is_predicted_besides() -> None:
    gap = gap_of(slow_run(30.0))
    assert gap.is_measured and gap.ratio > 1.5
    predicted = [cause for cause in gap.causes if cause.basis == "predicted"]
    assert predicted[0].name == "recomputation" and predicted[0].through == "recompute"


def test_what_is_left_over_grows_with_the_measured_step_alone() -> None:
    fast, slow = gap_of(slow_run(20.0)), gap_of(slow_run(40.0))
    assert named(slow, SOFTWARE).factor == pytest.approx(2 * named(fast, SOFTWARE).factor)
    assert named(slow, "recomputation") == named(fast, "recomputation")


def test_a_run_that_waits_for_data_is_told_by_how_much() -> None:
    stall = Cause(kind=CauseKind.DATA_STALL, finding="", evidence=(), actions=(), figures={"share": 0.25})
    gap = gap_of(slow_run(40.0, stall))
    assert named(gap, "data").basis == "measured" and named(gap, "data").factor == pytest.approx(4 / 3)


def test_a_full_memory_explains_a_long_step() -> None:
    roomy, full = (gap_of(slow_run(60.0, peak_bytes=used * GIB)) for used in (40, 78.5))
    assert "full memory" not in [cause.name for cause in roomy.causes]
    assert named(full, "full memory").factor > 1.2


LEVER = Lever(name="tp_overlap", saves={"tp": 0.5})


def test_levers_that_are_off_count_where_their_effect_was_measured() -> None:
    gap = gap_of(slow_run(40.0), LEVER, Lever(name="hope", saves={"compute": 0.5}, is_assumed=True))
    assert named(gap, "levers").change == "+ tp_overlap" and named(gap, "levers").factor > 1.01


def test_levers_explain_no_more_than_what_is_left() -> None:
    measured = gap_of(slow_run(12.0), LEVER)
    assert named(measured, "levers").factor == 1.0 and named(measured, SOFTWARE).factor < 1


def test_a_command_without_a_measurement_is_slower_for_the_levers_that_it_leaves_off() -> None:
    plain, without = gap_of(slow_run(None)), gap_of(slow_run(None), LEVER)
    assert not without.is_measured
    factor = plain.flops_per_s / without.flops_per_s
    assert named(without, "levers").factor * named(without, SOFTWARE).factor == pytest.approx(
        factor * named(plain, SOFTWARE).factor
    )


def test_a_published_run_differs_from_itself_in_nothing_but_the_error_of_its_plan() -> None:
    other = next(run for run in published_runs() if run.subject.cluster.name == "h100x64")
    planner = Planner(other.subject.model, other.subject.cluster, other.subject.job)
    gap = gap_of(DiagnosisInput.of(planner, other.layout, measured=Measured(step_s=other.step_s * 1.3)))
    assert gap.other == other
    assert [cause.name for cause in gap.causes] == [SOFTWARE]
    assert gap.ratio == pytest.approx(1.3)


def test_a_slow_network_between_nodes_is_named_and_acts_through_messages() -> None:
    run = run_of("Z1 TP2 mbs1", model="llama3-8b", cluster="h100x16", gbs=64)
    slow = replace(run.cluster, network=LinkSpec(bytes_per_s=2e9, latency_s=3e-5))
    gap = gap_of(DiagnosisInput.of(Planner(run.planner.model, slow, run.planner.job), run.layout))
    machine = named(gap, "machine")
    assert machine.change == "network 2 GB/s -> 50 GB/s"
    assert machine.through == "messages" and machine.factor > 1.1
    assert "machine" not in [cause.name for cause in gap_of(run).causes]


@pytest.mark.parametrize(
    ("model", "cluster", "why"), [("gpt2", "h100x8", "parameters"), ("llama3-8b", "v100-32x8", "a100")]
)
def test_a_run_that_no_published_one_is_near_is_not_compared(model: str, cluster: str, why: str) -> None:
    found = published_gap(run_of("Z3 mbs1", model=model, cluster=cluster, seq_len=1024))
    assert isinstance(found, NotCompared) and found.nearest is not None
    assert why in found.reason


def test_a_run_that_is_out_of_memory_has_no_speed_to_compare() -> None:
    found = published_gap(run_of("TP1 mbs8", model="llama3-70b", measured=Measured(out_of_memory=True)))
    assert isinstance(found, NotCompared) and found.nearest is None
