from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.strategies.guided.worlds import World, points, prior
from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.strategies.guided.posteriors import TimePosterior
from zenith_tune.strategies.guided.prior import LEAST_SPREAD

POINTS = points()


def at(**values: object) -> int:
    return next(i for i, point in enumerate(POINTS) if all(point[name] == value for name, value in values.items()))


def test_before_any_trial_it_believes_the_planner() -> None:
    known = prior()
    posterior = TimePosterior(known)
    believed, fits = np.exp(posterior.mean), known.log_memory < -4 * known.memory_sd
    assert fits.any() and np.allclose(believed[fits], known.estimate.step_s[fits])
    assert (posterior.sd > LEAST_SPREAD).all()


def test_of_a_layout_that_runs_it_is_known_that_it_fits() -> None:
    known = prior()
    believed, planned = np.exp(TimePosterior(known).mean), known.estimate.step_s
    over = known.log_memory > 0
    assert over.any() and (believed[over] < 1.001 * planned[over]).all()
    assert (believed[over] < 0.7 * planned[over]).any(), (
        "one that runs in spite of its plan has room, and does not thrash"
    )


def test_what_was_measured_is_believed() -> None:
    posterior, index = TimePosterior(prior()), at(tp=2, pp=1, mbs=2, recompute="none")
    measured = posterior.mean[index] + 0.3
    posterior.observe(index, measured)
    assert posterior.mean[index] == pytest.approx(measured, abs=0.01)
    assert posterior.sd[index] < 0.02


def test_neighbours_follow_a_trial_more_than_what_is_far() -> None:
    flat = prior()
    flat = replace(flat, sensitivity=np.zeros_like(flat.sensitivity), scale_sd=0.0)
    posterior = TimePosterior(flat)
    posterior.observe(
        at(tp=1, pp=1, mbs=1, recompute="none"), posterior.mean[at(tp=1, pp=1, mbs=1, recompute="none")] + 0.3
    )
    moved = posterior.mean - flat.log_step
    near, far = at(tp=1, pp=1, mbs=2, recompute="none"), at(tp=8, pp=1, mbs=8, recompute="full/uniform")
    assert moved[near] > 2 * moved[far] > 0
    assert posterior.sd[near] < posterior.sd[far]


def test_slow_links_seen_at_tp8_are_believed_of_tp4_and_not_of_tp1() -> None:
    """Check that a trial corrects the coefficients, and not a table of layouts."""
    known = prior()
    known = replace(known, scale_sd=0.0, neighbour_sd=np.zeros(len(known)))
    posterior = TimePosterior(known)
    index = at(tp=8, pp=1, mbs=1, recompute="none")
    posterior.observe(index, known.log_step[index] + 0.4)
    moved = posterior.mean - known.log_step
    near, far = at(tp=4, pp=1, mbs=2, recompute="none"), at(tp=1, pp=1, mbs=1, recompute="full/uniform")
    assert moved[near] > 1.3 * moved[far], "matrix products may be slower for both, links for one"


def test_estimates_that_prove_right_narrow_the_intervals_and_wrong_ones_widen_them() -> None:
    right, wrong = TimePosterior(prior()), TimePosterior(prior())
    before = float(np.median(right.sd))
    for step, index in enumerate(range(0, 60, 10)):
        right.observe(index, float(right._prior.log_step[index]))
        wrong.observe(index, float(wrong._prior.log_step[index]) + (0.1 if step % 2 else -0.1))
    assert np.median(right.sd) < 0.3 * before
    assert np.median(wrong.sd) > 2 * np.median(right.sd)


@pytest.mark.parametrize(("error", "least", "most"), [(-2.5, 0.9, 1.1), (2.5, 0.0, 0.2)])
def test_no_layout_is_far_faster_than_planned_by_itself_but_it_may_be_slower(
    error: float, least: float, most: float
) -> None:
    posterior, index = TimePosterior(prior()), at(tp=2, pp=1, mbs=2, recompute="none")
    planned = posterior.mean.copy()
    posterior.observe(index, planned[index] + error)
    assert least < np.median(posterior.mean - planned) / error < most


def test_layouts_that_nothing_explains_are_counted() -> None:
    posterior = TimePosterior(prior())
    before = posterior.ordinary
    for step, index in enumerate(range(0, 60, 10)):
        posterior.observe(index, float(posterior._prior.log_step[index]) + (1.5 if step % 2 else 0.0))
    assert posterior.ordinary < before - 0.2


def test_supposing_a_running_trial_takes_its_uncertainty_away_and_moves_nothing() -> None:
    posterior, index = TimePosterior(prior()), at(tp=4, pp=1, mbs=1, recompute="none")
    mean, sd = posterior.supposing([index])
    assert np.allclose(mean, posterior.mean)
    assert sd[index] < 0.3 * posterior.sd[index] and posterior.sd[index] > 0.02


def test_without_calibration_coefficients_may_be_further_off() -> None:
    known, unknown = prior(default_calibration("megatron")), prior(Calibration(framework="megatron"))
    assert unknown.coefficient_sd.sum() > 1.5 * known.coefficient_sd.sum()


@pytest.mark.slow
def test_stated_uncertainty_holds_on_machines_that_differ_as_expected() -> None:
    """Check the 90% interval of the posterior over worlds, after five trials each."""
    inside = []
    for seed in range(20):
        skew = math.exp((seed % 5 - 2) * 0.1)
        world = World({"gemm_efficiency": 0.9 * skew, "fast_efficiency": 1.2 / skew, "layer_launch_s": 1.3}, seed=seed)
        trials = {i: trial for i, trial in world.trials().items() if trial.ok}
        posterior = TimePosterior(prior())
        seen = list(trials)[:: max(len(trials) // 5, 1)][:5]
        for index in seen:
            posterior.observe(index, math.log(trials[index].step_s or 1), 0.003)
        for index, trial in trials.items():
            if index not in seen:
                inside.append(abs(math.log(trial.step_s or 1) - posterior.mean[index]) < 1.645 * posterior.sd[index])
    assert 0.85 <= float(np.mean(inside)) <= 1.0
