"""What tests of whole studies share: a witness, a short way to make a tuner, a strategy that asks given points."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.toy_preset import ToyPreset
from zenith_tune import (
    Direction,
    Parameter,
    PresetTuner,
    Trial,
    TuningStrategy,
)
from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study.parameters import Value
from zenith_tune.study.study import Study
from zenith_tune.tuning.events import StudyEnd, StudyListener

PRINT_X = "sh -c 'echo value: {x}'"


class Witness(StudyListener):
    """Remember what a study reported."""

    def __init__(self) -> None:
        self.trials: list[Trial] = []
        self.recalled: list[Trial] = []
        self.repeated: list[Trial] = []
        self.pruned: list[str] = []
        self.notes: list[str] = []
        self.end: StudyEnd | None = None

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        self.trials.append(trial)

    def trial_recalled(self, trial: Trial, label: str) -> None:
        self.recalled.append(trial)

    def point_repeated(self, trial: Trial, label: str) -> None:
        self.repeated.append(trial)

    def point_pruned(self, params: Mapping[str, Value], label: str, reason: str) -> None:
        self.pruned.append(reason)

    def noted(self, line: str) -> None:
        self.notes.append(line)

    def explained(self, line: str) -> None:
        self.notes.append(line)

    def search_began(self, outlook: str) -> None:
        self.notes.append(outlook)

    def study_ended(self, end: StudyEnd) -> None:
        self.end = end


def tune(tmp_path: Path, command: str = PRINT_X, preset: ToyPreset | None = None, **options: Any) -> PresetTuner:
    options.setdefault("listener", Witness())
    options.setdefault("study_name", "s")
    options.setdefault("confirm", False)  # most studies here are about other things than a gain
    return PresetTuner(command, preset or ToyPreset(), output_dir=tmp_path / "out", **options)


class Asks(TuningStrategy):
    """Ask for given points, in order, and remember the answers."""

    ends_by_itself = False

    def __init__(self, *points: Value) -> None:
        self.points = points
        self.answers: list[Trial] = []

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        self.answers = []
        for x in self.points:
            self.answers.append(eval_fn.run({"x": x}))
