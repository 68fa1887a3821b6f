"""Search of a job whose step has phases, such as generation and training: a trial tests a change in each at once.

Most settings touch one phase, and the log shows the time of each. So the best value of a setting is found by the time
of its own phase, whatever is changed in the others meanwhile, and the trials needed are those of the phase with most
settings, not their product. Memory is what phases share: of several changes that fail together, half is tried again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from zenith_tune.errors import UsageError
from zenith_tune.strategies.base import EvalFunction, StrategyRegistry, TunedJob, TuningStrategy, listed_choices
from zenith_tune.study.parameters import Direction, Parameter, Params, Value
from zenith_tune.study.study import LEAST_GAIN
from zenith_tune.study.trial import Trial

WHOLE = "step"
"""The whole step, by which a setting is judged that no phase is known for, and alone."""


@dataclass(slots=True, kw_only=True)
class _Setting:
    """A parameter, and the values of it that are still to be tried."""

    name: str
    phases: tuple[str, ...]
    """The phases that it touches."""
    values: Sequence[Value]
    """In order, where they have one."""
    best: Value
    tried: set[Value] = field(default_factory=set)

    def following(self) -> Value | None:
        """Return the next value to try, beside the best one where they have an order; None where all are known."""
        at = self.values.index(self.best)
        near = [*self.values[at + 1 : at + 2], *self.values[max(at - 1, 0) : at]] if self._has_order else self.values
        return next((value for value in near if value not in self.tried), None)

    @property
    def _has_order(self) -> bool:
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)


@StrategyRegistry.register("phases")
class PhasesStrategy(TuningStrategy):
    """Each trial changes a setting of every phase, and each change is judged by the time of its own phase."""

    ends_by_itself = True

    def __init__(self) -> None:
        self._job = TunedJob()

    def prepare(self, job: TunedJob) -> None:
        if not job.phases():
            problem = "the phases strategy needs the time of each phase, which the preset does not read"
            raise UsageError(problem, hint="take --strategy optuna")
        self._job = job

    def max_trials(self, search_space: Mapping[str, Parameter]) -> int:
        return sum(len(each.grid(1_000)) - 1 for each in search_space.values()) + 1

    def why_done(self) -> str:
        return "no value of a setting makes its own phase faster"

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        choices = listed_choices(search_space, {}, strategy="the phases strategy", hint="take --strategy optuna")
        own = self._job.own_point() or {name: values[0] for name, values in choices.items()}
        search = _Search(settings=[*_settings(choices, own, self._job.phases())], best=own)
        base = self._job.baseline()
        search.learn(own, base if base is not None and base.ok else eval_fn.run(own, "your own settings"))
        while (point := search.following()) is not None:
            search.learn(point, eval_fn.run(point, search.why))
        if search.is_new(search.best):
            eval_fn.run(search.best, "the best setting of each phase")


def _settings(
    choices: Mapping[str, Sequence[Value]], own: Params, phases: Mapping[str, tuple[str, ...]]
) -> Iterator[_Setting]:
    for name, values in choices.items():
        if len(values) > 1:
            ordered = sorted(values, key=float) if all(type(each) in (int, float) for each in values) else values
            yield _Setting(
                name=name, phases=phases.get(name, (WHOLE,)), values=list(ordered), best=own[name], tried={own[name]}
            )


@dataclass(slots=True, kw_only=True)
class _Search:
    """What is known: the best value of each setting, the seconds of each phase with them, and points that ran."""

    settings: list[_Setting]
    best: Params
    seconds: dict[str, float] = field(default_factory=dict)
    """The time of each phase at the best settings."""
    why: str = ""
    _ran: dict[frozenset[tuple[str, Value]], bool] = field(default_factory=dict)
    """Whether each point that ran went well."""
    _changes: list[_Setting] = field(default_factory=list)
    """The settings that the trial under way changes."""
    _again: list[list[tuple[_Setting, Value]]] = field(default_factory=list)
    """Changes that failed together and are tried in parts."""

    def is_new(self, point: Params) -> bool:
        return frozenset(point.items()) not in self._ran

    def following(self) -> Params | None:
        """Return the next point; None where no setting has a value left to try."""
        while changes := self._again.pop(0) if self._again else self._untried():
            point = {**self.best, **{setting.name: value for setting, value in changes}}
            self._changes = [setting for setting, _ in changes]
            self.why = "changes " + ", ".join(f"{setting.name} to {value}" for setting, value in changes)
            if self.is_new(point):
                return point
            self._settle(point, None)  # it ran, and failed: none that went well has changes left to try
        return None

    def _untried(self) -> list[tuple[_Setting, Value]]:
        """Return a change of each phase: no two of them touch the same one."""
        changes: list[tuple[_Setting, Value]] = []
        touched: set[str] = set()
        for setting in self.settings:
            if (value := setting.following()) is None or touched.intersection(setting.phases):
                continue
            if WHOLE in setting.phases:
                if changes:
                    continue
                return [(setting, value)]
            changes.append((setting, value))
            touched.update(setting.phases)
        return changes

    def learn(self, point: Params, trial: Trial) -> None:
        """Take in what a point measured."""
        self._ran[frozenset(point.items())] = trial.ok
        self._settle(point, trial)

    def _settle(self, point: Params, trial: Trial | None) -> None:
        """Keep the changes that made their own phases faster; of several that failed, try halves."""
        changes = [(setting, point[setting.name]) for setting in self._changes]
        if trial is None or not trial.ok:
            if len(changes) > 1:
                half = len(changes) // 2
                self._again += [changes[:half], changes[half:]]
            elif changes:
                changes[0][0].tried.add(changes[0][1])
            return
        if not changes:  # the job's own settings
            self._keep(trial, {WHOLE, *(name for setting in self.settings for name in setting.phases)})
        for setting, value in changes:
            setting.tried.add(value)
            # Where the own settings failed, any that go well are better.
            before = sum(self.seconds.get(name, math.inf) for name in setting.phases)
            if sum(_seconds(trial, name) for name in setting.phases) < before * (1 - LEAST_GAIN):
                setting.best = value
                self.best = {**self.best, setting.name: value}
                self._keep(trial, setting.phases)

    def _keep(self, trial: Trial, phases: Iterable[str]) -> None:
        self.seconds |= {name: _seconds(trial, name) for name in phases}


def _seconds(trial: Trial, phase: str) -> float:
    return (trial.step_s or 0.0) if phase == WHOLE else trial.phases.get(phase, 0.0)
