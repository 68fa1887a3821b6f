from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.strategies.guided.worlds import points, prior, subject
from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.describe.cluster_catalog import load_cluster
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.strategies.guided.acquisition import Acquisition
from zenith_tune.strategies.guided.observer import EXPLAINED, TrialObserver, dominated_twins
from zenith_tune.strategies.guided.posteriors import (
    OTHER_CAUSE,
    MemoryPosterior,
    is_sharding_twin,
    is_slower,
    needs_more,
)
from zenith_tune.strategies.guided.prior import Prior, prior_of
from zenith_tune.study.budget import Training
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Outcome, Trial

POINTS = points()


def at(**values: object) -> int:
    return next(i for i, point in enumerate(POINTS) if all(point[name] == value for name, value in values.items()))


def shares(memory: list[float]) -> Prior:
    """Return a prior whose first layouts need these shares of the memory, and all others half of it."""
    known = prior()
    log_memory = np.log(np.array([*memory, *([0.5] * (len(known) - len(memory)))]))
    return replace(known, log_memory=log_memory, memory_sd=np.full(len(known), 0.05))


def test_what_needs_little_fits_and_what_needs_much_does_not() -> None:
    posterior = MemoryPosterior(shares([0.5, 1.0, 2.0]))
    assert posterior.fits[0] > 0.9 > posterior.fits[1] > 0.3 > posterior.fits[2]
    assert posterior.fits.max() <= 1 - OTHER_CAUSE


def test_running_out_of_memory_is_a_bound_that_all_layouts_feel() -> None:
    # The bound lies at place 20, which shares no sizes with the first places.
    posterior = MemoryPosterior(shares([0.9, 0.93, 0.96, *([0.5] * 17), 0.88]))
    before = posterior.fits.copy()
    posterior.observe_out_of_memory(20)
    assert (posterior.fits[:3] < 0.7 * before[:3]).all()
    assert posterior.fits[30] > 0.8, "what needs half of the memory still fits"


def test_a_run_that_went_well_makes_room() -> None:
    posterior = MemoryPosterior(shares([0.98, 1.02]))
    before = posterior.fits[0]
    posterior.observe_fits(1)
    assert posterior.fits[0] > before + 0.1


def test_a_measured_peak_says_more_than_that_it_ran() -> None:
    ran, measured = MemoryPosterior(shares([0.95, 0.7])), MemoryPosterior(shares([0.95, 0.7]))
    ran.observe_fits(1)
    measured.observe_peak(1, math.log(0.7 * 1.12))
    assert measured.fits[0] < 0.5 < ran.fits[0]


def test_an_estimate_that_is_wrong_altogether_is_left_behind() -> None:
    posterior = MemoryPosterior(shares([0.62, 0.6, 0.58, *([0.5] * 17), 0.6, 0.58]))
    assert posterior.fits[0] > 0.9
    posterior.observe_out_of_memory(20)
    posterior.observe_out_of_memory(21)
    assert posterior.fits[0] < 0.5, "two runs failed that had 40% to spare: something is not in the estimate"


def test_what_surely_needs_more_is_never_tried() -> None:
    posterior = MemoryPosterior(prior())
    failed = at(tp=2, pp=1, mbs=2, recompute="selective")
    posterior.observe_out_of_memory(failed)
    more = [at(tp=2, pp=1, mbs=4, recompute="selective"), at(tp=2, pp=1, mbs=2, recompute="none")]
    assert (posterior.fits[more] == 0).all()
    assert posterior.fits[at(tp=2, pp=1, mbs=1, recompute="selective")] > 0
    assert posterior.fits[at(tp=2, pp=1, mbs=4, recompute="full/uniform")] > 0, "recomputing all may make up for it"
    assert posterior.fits[at(tp=4, pp=1, mbs=4, recompute="none")] > 0


@pytest.mark.parametrize("recompute", ["none", "selective", "full/uniform"])
def test_nothing_needs_surely_more_than_itself(recompute: str) -> None:
    index = at(tp=1, pp=1, mbs=1, recompute=recompute)
    assert not needs_more(prior().layouts, index)[index]


def test_recomputing_more_of_what_runs_cannot_be_faster() -> None:
    slower = is_slower(prior().layouts, at(tp=2, pp=1, mbs=2, recompute="selective"))
    assert [POINTS[i] for i in np.flatnonzero(slower)] == [{"tp": 2, "pp": 1, "mbs": 2, "recompute": "full/uniform"}]
    assert not is_slower(prior().layouts, at(tp=2, pp=1, mbs=2, recompute="full/uniform")).any()


def sharded_pairs(framework: str, cluster: str, num_gpus: int, tp: int) -> Prior:
    """Return what is predicted of one layout, unsharded and sharded."""
    about = replace(subject("llama3.2-3b", framework), cluster=load_cluster(cluster))
    pair = [
        Layout(num_gpus=num_gpus, tp=tp, micro_batch=1, global_batch=64, zero=zero, sequence_parallel=tp > 1)
        for zero in (0, 1)
    ]
    return prior_of(about, default_calibration(framework), batch_of(pair))


def after_run(pair: Prior, index: int, *, slower: float = 0.0) -> Acquisition:
    """Return an acquisition that has seen a run of one of the two, so much slower than predicted."""
    acquisition = Acquisition(pair, Training(hours=1000))
    step_s = float(np.exp(pair.log_step[index])) * (1 + slower)
    ran = Trial(params={}, outcome=Outcome.OK, value=step_s, step_s=step_s, duration_s=60.0, num_samples=10)
    TrialObserver(acquisition, Direction.MINIMIZE, 80e9).observe(index, ran)
    return acquisition


def test_the_unsharded_twin_of_a_sharded_layout_that_ran_is_not_tried() -> None:
    pair = sharded_pairs("megatron", "h100x8", 8, tp=1)
    assert dominated_twins(after_run(pair, 1), 1).tolist() == [True, False]
    assert after_run(pair, 1).pick() is None
    assert not dominated_twins(after_run(pair, 0), 0).any(), "sharding saves memory"


def test_of_two_names_of_one_run_either_leaves_out_the_other() -> None:
    pair = sharded_pairs("megatron", "h100x1", 1, tp=1)  # one data-parallel rank has nothing to shard
    assert dominated_twins(after_run(pair, 1, slower=0.01), 1).tolist() == [True, False]
    assert dominated_twins(after_run(pair, 0, slower=0.01), 0).tolist() == [False, True]


def test_where_sharding_is_predicted_to_cost_time_there_is_no_twin() -> None:
    pair = sharded_pairs("nanotron", "h100x32", 32, tp=1)
    assert pair.log_step[1] > pair.log_step[0]
    assert not dominated_twins(after_run(pair, 1), 1).any()


def test_on_so_many_gpus_that_much_is_unexplained_there_is_no_twin() -> None:
    known = sharded_pairs("megatron", "h100x8", 8, tp=1)
    pair = replace(known, own_sd=known.own_sd + EXPLAINED)
    assert not dominated_twins(after_run(pair, 1), 1).any()


def test_where_sharding_proves_slower_than_predicted_there_is_no_twin() -> None:
    pair = sharded_pairs("megatron", "h100x8", 8, tp=1)
    assert not dominated_twins(after_run(pair, 1, slower=1.0), 1).any()


def test_a_layout_that_is_cut_otherwise_is_no_twin() -> None:
    layouts = [
        Layout(num_gpus=8, tp=tp, micro_batch=mbs, global_batch=64, zero=zero, recompute=recompute)
        for tp, mbs, zero, recompute in [
            (1, 1, 1, "none"),
            (2, 1, 0, "none"),
            (1, 2, 0, "none"),
            (1, 1, 0, "selective"),
        ]
    ]
    assert not is_sharding_twin(batch_of(layouts), 0).any()
