"""Settings that are judged by the time of their own phase."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.conftest import ROOT
from zenith_rl.strategy import PhasesStrategy
from zenith_tune.errors import UsageError
from zenith_tune.strategies.base import PlainFunction, TunedJob
from zenith_tune.study.parameters import CategoricalParameter, Direction, Params, Value
from zenith_tune.study.trial import PHASE, Outcome, Trial

sys.path.insert(0, str(ROOT / "benchmarks"))

from phase_search import MOST_TRIALS, NEAR, results

SPACE = {
    "tp": CategoricalParameter([2, 1, 4, 8]),
    "mbs": CategoricalParameter([4, 1, 2, 8]),
    "recompute": CategoricalParameter([True, False]),
}
OWN: Params = {"tp": 2, "mbs": 4, "recompute": True}
PHASES = {"tp": ("generation",), "mbs": ("update",), "recompute": ("update",)}


class Job(PlainFunction):
    """A job whose generation is fastest with few GPUs, and whose update wants memory."""

    def __init__(self, room: int = 99) -> None:
        super().__init__(lambda params: self.run(params).value)
        self.room, self.trials = room, list[Trial]()

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        tp, mbs, recompute = int(params["tp"]), int(params["mbs"]), bool(params["recompute"])
        if mbs * (1 if recompute else 3) + 8 // tp > self.room:
            self.trials.append(Trial(params=dict(params), outcome=Outcome.OOM, why=why))
            return self.trials[-1]
        figures: dict[str, Value] = {
            f"{PHASE}generation": 10.0 + tp,
            f"{PHASE}update": (20.0 + 8 / mbs) * (1.3 if recompute else 1.0),
        }
        step_s = sum(float(each) for each in figures.values())
        trial = Trial(params=dict(params), outcome=Outcome.OK, value=step_s, step_s=step_s, extra=figures, why=why)
        self.trials.append(trial)
        return trial


def searched(job: Job, space: Mapping[str, Any] = SPACE, phases: Mapping[str, tuple[str, ...]] = PHASES) -> Trial:
    """Return the best trial of a study."""
    strategy = PhasesStrategy()
    strategy.prepare(TunedJob(phases=lambda: phases, own_point=lambda: {name: OWN[name] for name in space}))
    strategy.optimize(job, space, Direction.MINIMIZE)
    return min((trial for trial in job.trials if trial.ok), key=lambda trial: trial.value or 0.0)


def test_a_trial_changes_a_setting_of_every_phase() -> None:
    job = Job()
    assert searched(job).params == {"tp": 1, "mbs": 8, "recompute": False}
    assert job.trials[0].params == OWN
    assert job.trials[1].why == "changes tp to 4, mbs to 8"
    # The values beside the own ones: two of tp, one of mbs, and then recompute, which is in the phase of mbs.
    assert len(job.trials) == 3


def test_the_own_command_is_not_run_again() -> None:
    job = Job()
    base = job.run(OWN)
    strategy = PhasesStrategy()
    strategy.prepare(TunedJob(phases=lambda: PHASES, own_point=lambda: dict(OWN), baseline=lambda: base))
    strategy.optimize(job, SPACE, Direction.MINIMIZE)
    assert [trial.params for trial in job.trials].count(OWN) == 1


@pytest.mark.parametrize("room", [8, 10, 12, 14, 20, 32])
def test_changes_that_fail_together_are_tried_in_parts(room: int) -> None:
    job = Job(room)
    best = searched(job)
    # Nothing that fits is better by one more change.
    for name, parameter in SPACE.items():
        for value in parameter.choices:
            other = Job(room).run({**best.params, name: value})
            assert not other.ok or (other.value or 0) >= (best.value or 0)
    points = [tuple(trial.params.items()) for trial in job.trials]
    assert len(points) == len(set(points)) <= 12


def test_a_setting_of_no_known_phase_is_judged_by_the_whole_step_and_alone() -> None:
    job = Job()
    assert searched(job, phases={"tp": ("generation",)}).params == {"tp": 1, "mbs": 8, "recompute": False}
    assert not any("mbs" in trial.why and "," in trial.why for trial in job.trials)


def test_where_the_own_settings_fail_any_that_run_are_better() -> None:
    assert searched(Job(room=6)).ok  # the own ones take 8
    assert Job(room=6).run(OWN).outcome is Outcome.OOM


def test_a_failure_of_all_ends() -> None:
    job = Job(room=0)
    with pytest.raises(ValueError, match="empty"):
        searched(job)
    assert not any(trial.ok for trial in job.trials) and len(job.trials) <= 12


def test_a_preset_without_phases_is_refused() -> None:
    with pytest.raises(UsageError, match="needs the time of each phase"):
        PhasesStrategy().prepare(TunedJob())


def test_it_takes_few_trials_on_made_landscapes() -> None:
    """Optuna's TPE takes 37 on the mean to be as near (benchmarks/phase_search.py --landscapes 20)."""
    ((_, landscapes),) = results(["phases"], 20)
    assert statistics.mean(len(landscape.trials) for landscape in landscapes) < 8
    assert sum(landscape.behind() <= NEAR for landscape in landscapes) >= 19
    assert all(len(landscape.trials) < MOST_TRIALS / 5 for landscape in landscapes)
