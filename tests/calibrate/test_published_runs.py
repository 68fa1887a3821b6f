"""The catalog of published runs says what the measured rows say, and no more than the best of each group."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import ROOT
from tests.data_folder import measured_data
from zenith_tune.calibrate.published_runs import published_runs
from zenith_tune.layouts.rules import broken_rules

sys.path.insert(0, str(ROOT / "benchmarks"))

from published_runs import OUTPUT, best_runs, catalog


@pytest.mark.slow
def test_the_catalog_is_what_the_measured_runs_make() -> None:
    assert catalog(best_runs(measured_data())) == OUTPUT.read_text(encoding="utf-8")


def test_every_published_run_has_a_page_and_a_plausible_speed() -> None:
    for run in published_runs():
        assert run.url.startswith("https://") and run.source
        assert 0.04 < run.flops_per_s / run.subject.cluster.gpu.matrix_flops(run.subject.job.precision) < 1


def test_every_published_run_keeps_the_counts_of_its_layout() -> None:
    counts = ("world", "expert_world", "batch")
    for run in published_runs():
        broken = [rule.name for rule, _ in broken_rules(run.subject.model, run.subject.job, run.layout)]
        assert not set(broken) & set(counts), run


def test_recomputation_is_known_where_the_source_states_it() -> None:
    stated = {run.source: run.states_recompute for run in published_runs()}
    assert stated["Korthikanti et al."] and not stated["NVIDIA DGX Cloud benchmarking recipes"]


def test_the_catalog_of_published_runs_is_read() -> None:
    assert len(published_runs()) > 100
    assert min(run.flops_per_s for run in published_runs()) > 1e13
