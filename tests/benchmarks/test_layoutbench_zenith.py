"""Our own strategies run through the protocol of LayoutBench; what they search is left out of their calibration."""

from __future__ import annotations

import sys

import pytest

from layoutbench.build import landscapes_of
from layoutbench.landscape import SHIPPED, Landscape, load_landscapes
from layoutbench.runner import run_tuner
from tests.conftest import ROOT
from tests.data_folder import measured_data
from zenith_calibration.calibrate.measured_rows import read_measured

sys.path.insert(0, str(ROOT / "benchmarks"))

from layoutbench_zenith import GuidedUncalibrated, TwoStageHeuristic, to_replay
from replay_landscape import landscapes, read_runs

LANDSCAPES = {item.model["name"]: item for item in load_landscapes([SHIPPED])}


@pytest.fixture
def landscape() -> Landscape:
    return LANDSCAPES["llama-16x2048"]


def test_guided_stops_by_itself_and_tries_the_optimizer_of_which_it_knows_nothing(landscape: Landscape) -> None:
    record = run_tuner("guided", GuidedUncalibrated, landscape, 0)
    assert record.stopped and not record.why_not and len(record.regrets) < len(landscape.layouts) / 2
    assert record.regrets[-1] < 0.01


def test_a_problem_names_the_same_model_and_cluster_as_the_runs_that_are_fitted(landscape: Landscape) -> None:
    replayed = to_replay(landscape.problem())
    fitted = {run.landscape for run in read_measured(max((ROOT / "benchmarks" / "results").glob("h200-sweep-*.csv")))}
    assert replayed.place in fitted
    assert {item.layout.flash_attention for item in replayed.recorded} == {True, False}
    assert {item.layout.recompute for item in replayed.recorded} == {"none", "full/uniform"}


def test_a_published_landscape_means_the_same_job_to_us_as_in_the_replay() -> None:
    data = measured_data()
    built = {(item.source["id"], *item.group): item for item in landscapes_of(data)}
    problems = [to_replay(item.problem()) for item in built.values()]
    found = {(item.place, item.subject.job.seq_len): item for item in problems}
    for replayed in landscapes(read_runs(data / "published" / "ultrascale_playbook.csv")):
        ours = found[replayed.place, replayed.subject.job.seq_len]
        assert ours.subject == replayed.subject
        assert {item.layout for item in ours.recorded} == {item.layout for item in replayed.recorded}


def test_the_heuristic_refuses_what_it_cannot_search_and_searches_the_rest() -> None:
    refused = run_tuner("heuristic", TwoStageHeuristic, LANDSCAPES["llama-16x2048"], 0)
    assert refused.why_not and not refused.regrets
    searched = run_tuner("heuristic", TwoStageHeuristic, LANDSCAPES["llama1b-s4k"], 0)
    assert searched.stopped and searched.regrets
