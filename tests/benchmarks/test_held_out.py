"""Runs are judged by fits that have not seen their landscape."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.calibrate.made_runs import SMALL, made_runs
from tests.calibrate.test_time_fit import TRUTH
from tests.calibration.calibrate.test_memory_fit import a_run, measured_as
from tests.conftest import ROOT
from tests.layouts.test_stages import PLAYBOOK, dealt_one_by_one
from tests.mentions import mentions
from zenith_tune.estimates.calibration import MemoryCoefficients
from zenith_tune.estimates.memory_risk import MemoryRisk

sys.path.insert(0, str(ROOT / "benchmarks"))

from held_out import empty_cost_stages, forbidden, given_it_fits, hold_out, hold_out_memory, predict


def test_a_landscape_is_predicted_without_having_been_seen() -> None:
    runs = [run for run in made_runs(TRUTH) if run.model == SMALL]
    odd = [replace(run, step_s=2 * (run.step_s or 0)) if run.num_gpus == 64 else run for run in runs]
    ((_, judged),) = hold_out(odd)
    errors = {size: np.median([abs(each.error) for each in judged if each.run.num_gpus == size]) for size in (8, 64)}
    assert errors[64] > 0.5 > 0.1 > errors[8], "runs twice as slow as the others cannot be predicted"


def test_each_landscape_is_judged_by_a_fit_to_the_others() -> None:
    runs = measured_as(MemoryCoefficients(activations=1.1), "megatron")
    odd = [replace(run, memory_bytes=2 * (run.memory_bytes or 0)) for run in runs if run.layout["tp"] == 4]
    held = hold_out_memory([run for run in runs if run.layout["tp"] != 4] + odd)
    off = {item.run.layout["tp"]: item.predicted_bytes / (item.run.memory_bytes or 1) for item in held}
    assert len(held) == len(runs) and off[4] == pytest.approx(0.5, rel=0.1)


def test_a_run_that_its_framework_forbids_is_not_expected_to_run() -> None:
    run = a_run("nanotron", source="ultrascale_playbook", pp=16, dp=1, gbs=4)
    assert mentions(forbidden(run), "pp-1", 4, 15)
    (held,) = predict([run], MemoryCoefficients(), "nanotron")
    assert held.fits_probability > 0.5 and not held.runs


def test_a_crash_that_memory_cannot_explain_is_recognised() -> None:
    small, large = a_run("nanotron", mbs=1, tp=8, dp=1), a_run("nanotron", mbs=64, dp=1)
    crashed = [replace(run, out_of_memory=True, memory_bytes=None) for run in (small, large)]
    held = predict(crashed, MemoryCoefficients(), "nanotron")
    assert [item.is_unexplained for item in held] == [True, False]


@pytest.mark.parametrize(("num_layers", "hidden", "ffn"), PLAYBOOK)
@pytest.mark.parametrize("pp", [1, 2, 4, 8, 16, 32, 64, 128])
def test_stages_without_a_block_are_those_that_dealing_leaves_empty(
    num_layers: int, hidden: int, ffn: int, pp: int
) -> None:
    layer_cost, head_cost = 4.0 * hidden**2 + 3.0 * hidden * ffn, 131072.0 * hidden
    _, empty = dealt_one_by_one(num_layers, layer_cost, head_cost, pp)
    assert empty_cost_stages(float(num_layers), layer_cost, head_cost, float(pp)) == empty


def test_a_layout_that_runs_is_charged_no_crash_but_more_for_a_full_memory() -> None:
    risk = MemoryRisk(oom=np.array([0.0, 0.5, 1.0]), tight=np.array([0.1, 0.1, 0.0]))
    assert given_it_fits(risk).oom.tolist() == [0.0, 0.0, 0.0]
    assert given_it_fits(risk).tight == pytest.approx([0.1, 0.2, 0.0])
