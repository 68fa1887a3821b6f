from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.study_tools import PRINT_X, Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune import (
    Direction,
    Parameter,
    Trial,
    TuningStrategy,
)
from zenith_tune.errors import UsageError
from zenith_tune.strategies.base import EvalFunction


def test_the_budget_counts_runs_and_neither_repeats_nor_prunes(tmp_path: Path) -> None:
    witness = Witness()
    strategy = Asks(1, 1, 9, 2, 1, 3, 4, 5)
    preset = ToyPreset(range(1, 10), illegal=[9])
    tune(tmp_path, PRINT_X, preset, strategy=strategy, listener=witness).optimize(n_trials=3)
    assert [trial.params["x"] for trial in witness.trials] == [1, 2, 3]
    assert [trial.params["x"] for trial in witness.repeated] == [1, 1]
    assert witness.pruned == [preset.explain({"x": 9})]
    assert witness.end is not None and "budget of 3 " in witness.end.why


def test_a_repeated_point_is_answered_from_the_record(tmp_path: Path) -> None:
    strategy = Asks(2, 2)
    tune(tmp_path, strategy=strategy).optimize()
    assert [(answer.outcome, answer.value) for answer in strategy.answers] == [("ok", 2.0), ("duplicate", 2.0)]


def test_a_repeated_failure_is_a_failure_again(tmp_path: Path) -> None:
    strategy = Asks(2, 2)
    tune(tmp_path, "false {x}", strategy=strategy).optimize()
    assert [answer.value for answer in strategy.answers] == [None, None]


def test_too_many_repeats_in_a_row_stop_the_strategy(tmp_path: Path) -> None:
    witness = Witness()
    strategy = Asks(*[1] * 10)
    tune(tmp_path, strategy=strategy, listener=witness, max_duplicates=4).optimize()
    assert len(strategy.answers) == 5
    assert witness.end is not None and "4 points" in witness.end.why and "tried" in witness.end.why


def test_too_many_prunes_in_a_row_stop_the_strategy(tmp_path: Path) -> None:
    witness = Witness()
    strategy = Asks(*[2] * 10)
    preset = ToyPreset(illegal=[2])
    tune(tmp_path, preset=preset, strategy=strategy, listener=witness, max_prunes=4).optimize()
    assert len(strategy.answers) == 4
    assert witness.end is not None and "4 pruned points" in witness.end.why


def test_a_point_outside_the_space_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x must .*77"):
        tune(tmp_path, strategy=Asks(77)).optimize()


def test_submitted_points_come_back_as_trials(tmp_path: Path) -> None:
    class Parallel(TuningStrategy):
        ends_by_itself = True

        def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
            futures = [eval_fn.submit({"x": x}) for x in (1, 2, 2, 3)]
            self.values = [future.result(timeout=500).value for future in futures]

    strategy = Parallel()
    assert tune(tmp_path, strategy=strategy).optimize() == (3.0, {"x": 3})
    assert strategy.values == [1.0, 2.0, 2.0, 3.0]


class Submits(TuningStrategy):
    """Submit given points at once and do not wait for them."""

    ends_by_itself = True

    def __init__(self, *points: int) -> None:
        self.points = points
        self.futures: list[Future[Trial]] = []

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        self.futures = [eval_fn.submit({"x": x}) for x in self.points]


def test_what_was_submitted_runs_to_its_end(tmp_path: Path) -> None:
    witness = Witness()
    assert tune(tmp_path, strategy=Submits(1, 2, 3), listener=witness).optimize() == (3.0, {"x": 3})
    assert len(witness.trials) == 3


def test_a_spent_budget_does_not_drop_what_was_submitted_before(tmp_path: Path) -> None:
    witness = Witness()
    tune(tmp_path, strategy=Submits(1, 2, 3), listener=witness).optimize(n_trials=2)
    assert [trial.params["x"] for trial in witness.trials] == [1, 2]
    assert witness.end is not None and "budget of 2 " in witness.end.why


def test_an_error_in_a_submitted_trial_ends_the_study(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="first 3 trials"):
        tune(tmp_path, "echo {x}", ToyPreset(range(4)), strategy=Submits(0, 1, 2, 3)).optimize()


def test_trials_never_overlap_on_a_runner_with_one_slot(tmp_path: Path) -> None:
    class Mixes(TuningStrategy):
        ends_by_itself = True

        def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
            eval_fn.submit({"x": 1})
            eval_fn.run({"x": 2})

    log = tmp_path / "log"
    tune(
        tmp_path, f"sh -c 'echo s >> {log}; sleep 0.3; echo e >> {log}; echo value: {{x}}'", strategy=Mixes()
    ).optimize()
    assert log.read_text().split() == ["s", "e", "s", "e"]


def test_a_cancelled_trial_does_not_run_and_costs_nothing(tmp_path: Path) -> None:
    class Cancels(Submits):
        def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
            super().optimize(eval_fn, search_space, direction)
            assert self.futures[1].cancel()
            self.futures.append(eval_fn.submit({"x": 3}))

    witness = Witness()
    command = "sh -c 'sleep 0.3; echo value: {x}'"
    tune(tmp_path, command, strategy=Cancels(1, 2), listener=witness).optimize(n_trials=2)
    assert sorted(int(trial.params["x"]) for trial in witness.trials) == [1, 3]
