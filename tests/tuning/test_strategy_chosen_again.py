"""A study that leaves the strategy to its preset searches by the one that fits what the first run has shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.study_tools import Asks, Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune import TuningStrategy
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.strategies.random import RandomStrategy
from zenith_tune.study.parameters import Value

OWN = "sh -c 'echo value: 0'"


class LearningPreset(ToyPreset):
    """Know the way to search when the log of the user's own command says so."""

    def __init__(self, line: str = "value: 0") -> None:
        super().__init__()
        self._line, self._has_learnt = line, False

    def read_baseline(self, log: str) -> list[str]:
        self._has_learnt = self._line in log
        return ["learnt"] if self._has_learnt else []

    def get_recommended_strategy(self) -> TuningStrategy:
        return GridStrategy() if self._has_learnt else RandomStrategy()

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return command.replace("value: 0", f"value: {params['x']}")


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "s" / "study.json").read_text())
    return found


def test_what_the_users_own_command_shows_changes_the_strategy(tmp_path: Path) -> None:
    witness = Witness()
    tuner = tune(tmp_path, OWN, LearningPreset(), listener=witness)
    assert isinstance(tuner.strategy, RandomStrategy)
    assert tuner.optimize() == (3.0, {"x": 3})
    assert isinstance(tuner.strategy, GridStrategy)
    assert [trial.params.get("x") for trial in witness.trials] == [None, 1, 2, 3], "in the order of the grid"
    assert record(tmp_path)["search"]["strategy"] == "grid" and record(tmp_path)["search"]["max_trials"] == 3


def test_the_number_of_trials_that_the_user_gives_holds_for_either(tmp_path: Path) -> None:
    witness = Witness()
    tune(tmp_path, OWN, LearningPreset(), listener=witness).optimize(n_trials=2)
    assert [trial.params.get("x") for trial in witness.trials] == [None, 1, 2]


@pytest.mark.parametrize(
    ("line", "strategy", "kept"),
    [("else", None, RandomStrategy), ("value: 0", Asks(2), Asks)],
    ids=["nothing", "named"],
)
def test_it_stays_where_nothing_was_learnt_or_the_user_names_it(
    tmp_path: Path, line: str, strategy: TuningStrategy | None, kept: type[TuningStrategy]
) -> None:
    tuner = tune(tmp_path, OWN, LearningPreset(line), strategy=strategy)
    tuner.optimize(n_trials=1)
    assert isinstance(tuner.strategy, kept)


def test_a_study_that_is_resumed_learns_from_the_run_that_is_recorded(tmp_path: Path) -> None:
    tune(tmp_path, OWN, LearningPreset()).optimize(n_trials=1)
    witness = Witness()
    again = tune(tmp_path, OWN, LearningPreset(), listener=witness, resume=True)
    again.optimize()
    assert isinstance(again.strategy, GridStrategy)
    assert [trial.params.get("x") for trial in witness.trials] == [2, 3]
