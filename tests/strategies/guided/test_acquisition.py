from __future__ import annotations

import math

import numpy as np
import pytest

from tests.strategies.guided.worlds import World, points, prior
from zenith_tune.errors import UsageError
from zenith_tune.planner.limits import RISK
from zenith_tune.strategies.guided.acquisition import Acquisition, _seconds
from zenith_tune.strategies.guided.observer import TrialObserver
from zenith_tune.study.budget import Training
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Outcome, Trial

POINTS = points()


def play(world: World, max_trials: int = 40, training: Training | None = None) -> tuple[list[int], Acquisition]:
    """Run an acquisition against a world to its end; returns what it tried."""
    trials, acquisition = world.trials(), Acquisition(prior(), training)
    observer = TrialObserver(acquisition, Direction.MINIMIZE, 80e9)
    tried: list[int] = []
    while len(tried) < max_trials and (pick := acquisition.pick()) is not None:
        tried.append(pick.index)
        observer.observe(pick.index, trials[pick.index])
    return tried, acquisition


def test_the_first_pick_is_the_planners_best_among_those_that_fit() -> None:
    acquisition = Acquisition(prior())
    pick = acquisition.pick()
    assert pick is not None
    safe = acquisition.memory.fits >= 1 - RISK
    assert acquisition.prior.log_step[pick.index] == acquisition.prior.log_step[safe].min()
    assert pick.why and pick.expected_s == math.exp(acquisition.prior.log_step[pick.index])


WORLDS = [
    World({}, seed=1),
    World({"gemm_efficiency": 0.7}, seed=2),
    World({"fast_efficiency": 0.3}, noise=0.05, seed=3),
    World({"layer_launch_s": 4.0}, seed=4),
    World({"fast_efficiency": 0.5, "memory_efficiency": 0.6}, memory=1.15, seed=5),
    World({}, memory=1.6, seed=6),
]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: f"seed{world.seed}")
def test_it_finds_the_best_within_a_few_trials_and_stops(world: World) -> None:
    trials = world.trials()
    best = min(trial.step_s for trial in trials.values() if trial.step_s)
    tried, _ = play(world)
    found = [trials[index].step_s or math.inf for index in tried]
    first = next(i for i, step_s in enumerate(found, start=1) if step_s <= 1.01 * best)
    assert first <= 10, f"{first} trials to come within 1%"
    assert len(tried) < 25, "it stops by itself"
    assert len(set(tried)) == len(tried), "nothing is tried twice"


def test_it_stops_once_no_trial_saves_what_it_costs() -> None:
    _, acquisition = play(WORLDS[0])
    outlook = acquisition.outlook()
    assert outlook is not None and outlook.saved_s <= outlook.cost_s


@pytest.mark.slow
def test_a_longer_training_is_worth_more_trials() -> None:
    tried = [len(play(world, training=Training(hours=hours))[0]) for hours in (0.1, 8, 1000) for world in WORLDS]
    hour, night, weeks = (sum(tried[i : i + len(WORLDS)]) for i in (0, len(WORLDS), 2 * len(WORLDS)))
    assert hour < night < weeks


def test_until_something_has_run_no_trial_is_too_dear() -> None:
    acquisition = Acquisition(prior(), Training(hours=1e-6))
    observer = TrialObserver(acquisition, Direction.MINIMIZE, 80e9)
    for _ in range(3):
        pick = acquisition.pick()
        assert pick is not None, "there is nothing yet that a trial could be behind"
        observer.observe(pick.index, Trial(params={}, outcome=Outcome.OOM, duration_s=600.0))
    pick = acquisition.pick()
    assert pick is not None
    observer.observe(pick.index, Trial(params={}, outcome=Outcome.OK, value=1.0, step_s=1.0, duration_s=600.0))
    assert acquisition.pick() is None


def test_intervals_shrink_with_evidence() -> None:
    trials, acquisition = World({}, noise=0.01, seed=8).trials(), Acquisition(prior())
    observer = TrialObserver(acquisition, Direction.MINIMIZE, 80e9)
    ran = [index for index in np.argsort(acquisition.prior.log_step) if trials[int(index)].step_s][:15]
    for index in ran:
        observer.observe(int(index), trials[int(index)])
    others = np.setdiff1d(np.arange(len(acquisition.prior)), ran)
    near = others[acquisition.time.mean[others] < acquisition.best_log_step + 0.5]
    assert len(near) > 3 and np.median(acquisition.time.sd[near]) < 0.03


def test_a_layout_that_is_slow_beyond_anything_predicted_does_not_move_the_others() -> None:
    acquisition = Acquisition(prior())
    order = np.argsort(acquisition.prior.log_step)
    for index in order[:4]:
        acquisition.observe_step(int(index), float(acquisition.prior.log_step[index]), 0.003)
    before = acquisition.time.mean.copy()
    odd = int(order[4])
    acquisition.observe_step(odd, float(acquisition.prior.log_step[odd]) + 2.0, 0.003)
    others = np.setdiff1d(np.arange(len(acquisition.prior)), order[:5])
    assert np.median(np.abs(acquisition.time.mean - before)[others]) < 0.05


def test_running_trials_are_not_picked_again_nor_their_twins_first() -> None:
    acquisition = Acquisition(prior(), Training(hours=1000))
    observer = TrialObserver(acquisition, Direction.MINIMIZE, 80e9)
    first = acquisition.pick()
    assert first is not None
    observer.observe(first.index, World({}).trials()[first.index])
    side_by_side = [acquisition.pick() for _ in range(4)]
    indices = [pick.index for pick in side_by_side if pick is not None]
    assert len(set(indices)) == len(indices) >= 2 and first.index not in indices


def test_when_nothing_fits_it_goes_for_what_needs_least() -> None:
    acquisition = Acquisition(prior())
    observer = TrialObserver(acquisition, Direction.MINIMIZE, 80e9)
    memory, needed = acquisition.prior.log_memory, []
    for _ in range(12):
        pick = acquisition.pick()
        if pick is None:
            break
        needed.append(float(memory[pick.index]))
        observer.observe(pick.index, Trial(params=POINTS[pick.index], outcome=Outcome.OOM, duration_s=30.0))
    assert needed[-1] < needed[0] - 0.3
    assert needed[-1] <= np.quantile(memory, 0.3)


def test_a_configuration_error_becomes_a_rule() -> None:
    acquisition = Acquisition(prior())
    observer = TrialObserver(acquisition, Direction.MINIMIZE, 80e9)
    pick = acquisition.pick()
    assert pick is not None
    tp = POINTS[pick.index]["tp"]
    refused = Trial(
        params=POINTS[pick.index],
        outcome=Outcome.ERROR,
        failure="configuration",
        cause=f"heads must be divisible by tensor-model-parallel-size {tp}",
    )
    rule = observer.observe(pick.index, refused)
    assert rule is not None and f"tp={tp} " in rule and str(refused.cause) in rule
    later = [acquisition.pick() for _ in range(20)]
    assert all(POINTS[each.index]["tp"] != tp for each in later if each is not None)


def test_a_value_in_another_unit_guides_as_well() -> None:
    trials = World({"gemm_efficiency": 0.8}, seed=7).trials()
    acquisition = Acquisition(prior())
    observer = TrialObserver(acquisition, Direction.MAXIMIZE, 80e9)
    best = max(1e6 / trial.step_s for trial in trials.values() if trial.step_s)
    values: list[float] = []
    while len(values) < 8 and max(values, default=0.0) < 0.99 * best:
        pick = acquisition.pick()
        assert pick is not None
        step_s = trials[pick.index].step_s
        outcome, value = (Outcome.OK, 1e6 / step_s) if step_s else (Outcome.OOM, None)
        observer.observe(pick.index, Trial(params=POINTS[pick.index], outcome=outcome, value=value, duration_s=60.0))
        values.append(value or 0.0)
    assert max(values) >= 0.99 * best


def test_where_every_layout_runs_out_of_memory_it_gives_up() -> None:
    acquisition = Acquisition(prior())
    observer, count = TrialObserver(acquisition, Direction.MINIMIZE, 80e9), 0
    while (pick := acquisition.pick()) is not None:
        count += 1
        observer.observe(pick.index, Trial(params=POINTS[pick.index], outcome=Outcome.OOM, duration_s=30.0))
    assert count <= len(POINTS) / 3, "what has hardly a chance to run is not tried"


def test_a_value_that_is_no_time_and_no_rate_is_refused_in_one_line() -> None:
    acquisition = Acquisition(prior())
    pick = acquisition.pick()
    assert pick is not None
    with pytest.raises(UsageError, match=r"above 0.* got -2") as caught:
        TrialObserver(acquisition, Direction.MINIMIZE, 80e9).observe(
            pick.index, Trial(params=POINTS[pick.index], outcome=Outcome.OK, value=-2.0)
        )
    assert caught.value.hint


def test_a_step_is_written_with_its_range() -> None:
    assert _seconds(0.0, 0.1) == "1 s ±18% (90%)"
