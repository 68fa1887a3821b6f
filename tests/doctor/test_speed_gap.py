"""Gaps between runs are split among what they differ in, held against published pairs whose one difference is known."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import pytest

from tests.conftest import ROOT
from tests.data_folder import measured_data
from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.calibrate.published_runs import PublishedRun, published_runs
from zenith_tune.doctor.speed_gap import GapCause, run_of, settings_of, split_gap, step_parts

sys.path.insert(0, str(ROOT / "benchmarks"))

import numpy as np
from named_causes import Judged, Table, judge
from published_runs import comparable

from zenith_tune.doctor.speed_gap import shapley_values


def split(mine: PublishedRun, theirs: PublishedRun) -> tuple[GapCause, ...]:
    own, other = (settings_of(run.subject, run.layout) for run in (mine, theirs))
    return split_gap(own, other, default_calibration)


def predicted(run: PublishedRun) -> float:
    return 1 / sum(float(part[0]) for part in step_parts([(run.subject, run.layout)], default_calibration).values())


def test_settings_make_the_run_that_they_are_of() -> None:
    for run in published_runs():
        subject, layout = run_of(settings_of(run.subject, run.layout))
        assert layout == run.layout
        assert subject.job == run.subject.job and subject.cluster.fast_domain == run.subject.cluster.fast_domain


@pytest.mark.parametrize("offset", [1, 2])
def test_factors_multiply_to_the_ratio_of_the_predictions(offset: int) -> None:
    runs = published_runs()
    for mine, theirs in zip(runs[::60], runs[offset::60], strict=False):
        theirs = replace(theirs, subject=replace(theirs.subject, model=mine.subject.model))
        found = math.prod(cause.factor for cause in split(mine, theirs))
        assert found == pytest.approx(predicted(theirs) / predicted(mine), rel=0.01)
        back = math.prod(cause.factor for cause in split(theirs, mine))
        assert back == pytest.approx(1 / found, rel=0.01)


def test_a_run_does_not_differ_from_itself() -> None:
    run = published_runs()[0]
    assert split(run, run) == ()


MOST = 20
"""About the number of pairs of a table that are looked at."""


def pairs(table: str, cause: str) -> list[Judged]:
    """Return the pairs of one published table that differ in nothing but a cause."""
    cases = Table(comparable(measured_data() / "published" / f"{table}.csv")).single()
    found = [case for case in cases if cause in case.causes]
    return [Judged.of(case) for case in found[:: max(len(found) // MOST, 1)]]


@pytest.mark.parametrize(
    ("table", "cause", "most_off"),
    [
        ("dgxc_benchmarking", "precision", 0.08),
        ("dgxc_benchmarking", "number of GPUs", 0.05),
        ("torchtitan", "precision", 0.2),
        ("vtrain_multi", "micro-batch", 0.1),
        ("vtrain_multi", "pipeline", 0.1),
    ],
)
def test_the_one_difference_of_two_published_runs_is_named_with_its_size(
    table: str, cause: str, most_off: float
) -> None:
    judged = pairs(table, cause)
    assert [each.name for one in judged for each in one.found] == [cause] * len(judged) != []
    # Of nine in ten pairs the factor is as near to the measured one.
    assert sorted(each.error for each in judged)[int(0.9 * (len(judged) - 1))] < most_off
    clear = [each.is_named_first for each in judged if each.case.is_clear]
    assert sum(clear) >= 0.8 * len(clear)


def test_recomputation_is_the_first_cause_of_korthikantis_gain() -> None:
    runs = comparable(measured_data() / "published" / "korthikanti2022.csv")
    for full in (run for run in runs if run.layout.recompute.startswith("full")):
        same = [run for run in runs if run.subject.model == full.subject.model and run.layout.recompute == "selective"]
        other = next(run for run in same if run.layout.num_gpus == full.layout.num_gpus)
        first = max(split(full, other), key=lambda cause: abs(math.log(cause.factor)))
        assert first.name == "recomputation" and first.through == "recompute"
        assert math.prod(cause.factor for cause in split(full, other)) == pytest.approx(
            other.flops_per_s / full.flops_per_s, rel=0.1
        )


@pytest.mark.slow
def test_most_gaps_of_published_pairs_are_named_by_their_largest_cause() -> None:
    found = judge(Table(comparable(measured_data() / "published")), most=400)
    assert found["one cause"]["named_first"] > 0.8
    assert found["one cause"]["median_error"] < 0.12
    assert found["two causes"]["named_first"] > 0.75 and found["two causes"]["before_the_other"] > 0.85


def test_shapley_values_share_out_what_a_set_is_worth() -> None:
    assert shapley_values(np.array([0.0, 1.0, 2.0, 5.0]), 2) == [2.0, 3.0]
