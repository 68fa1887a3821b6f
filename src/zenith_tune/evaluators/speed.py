"""The evaluator of speed: objectives, units, steady state and progress, for every framework whose steps can be read."""

from __future__ import annotations

import copy
import statistics
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import Measurement, Progress, TuningEvaluator
from zenith_tune.evaluators.steady import long_run, summarise
from zenith_tune.evaluators.steps import SECONDS, TFLOPS, LoggedSteps
from zenith_tune.study.parameters import Direction, Value
from zenith_tune.study.trial import PHASE

Units = Mapping[str, tuple[str, ...]]
"""The units of each objective, the first that a log gives being used."""


def directions(units: Units) -> dict[str, Direction]:
    """Return the direction of each objective: times are minimized, rates maximized."""
    return {name: Direction.MINIMIZE if SECONDS in of else Direction.MAXIMIZE for name, of in units.items()}


class SpeedEvaluator(TuningEvaluator):
    """The speed of the steady state as one of several objectives; a subclass reads the steps of its framework."""

    units: ClassVar[Units] = {}

    def __init_subclass__(cls) -> None:
        if "objectives" not in vars(cls):
            cls.objectives = directions(cls.units)

    def __init__(self, objective: str, **sizes: float | None) -> None:
        """Take one of the objectives; the sizes that the job is said to have must be at least 1."""
        for name, size in sizes.items():
            if size is not None and size < 1:
                raise UsageError(f"{name} must be at least 1, but got {size}", hint=f"correct {name}")
        self._take_objective(objective)

    def _take_objective(self, name: str) -> None:
        if name not in self.objectives:
            raise UnknownNameError("objective", name, self.objectives)
        self.objective, self.direction = name, self.objectives[name]

    def with_objective(self, name: str) -> Self:
        other = copy.copy(self)
        other._take_objective(name)
        return other

    @property
    def measures_time(self) -> bool:
        return True

    @abstractmethod
    def read(self, log: str, metadata: Mapping[str, Any]) -> LoggedSteps:
        """Return at least one step, or raise ValueError with a one-line cause where the run has no value."""

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        return self.measure(stdout, metadata).value

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        logged = self.read(stdout, metadata)
        rates = logged.rates()
        unit = self._unit(rates)
        return summarise(
            rates[unit],
            self.direction,
            unit=unit,
            step_s=long_run(rates[SECONDS]) if rates[SECONDS] else None,
            peak_memory_bytes=logged.peak_bytes,
            common_error=logged.common_error,
            extra=self._extra(logged, rates, unit),
        )

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the values of the steady steps so far; None while there are none, or where the run has no value."""
        whole_lines = stdout[: stdout.rfind("\n") + 1]  # half a number reads as a whole one
        try:
            logged = self.read(whole_lines, metadata)
            rates = logged.rates()
            values = rates[unit := self._unit(rates)]
        except ValueError:
            return None
        if not logged.shows_progress:
            return None
        return Progress(
            values=values,
            value=long_run(values, self.direction),
            num_iterations=logged.num_steps,
            unit=unit,
            step_s=long_run(rates[SECONDS]) if rates[SECONDS] else None,
            next_s=logged.next_s,
            common_error=logged.common_error,
            peak_memory_bytes=logged.peak_bytes,
            is_last=bool(logged.steps) and logged.steps[-1].is_last,
        )

    def _unit(self, rates: Mapping[str, list[float]]) -> str:
        unit = next((unit for unit in self.units[self.objective] if rates[unit]), None)
        if unit is None:
            raise ValueError(self._missing())
        if unit == TFLOPS and statistics.median(rates[unit]) <= 0:
            raise ValueError("the log prints a throughput of 0.0 TFLOP/s/GPU, too small to compare: use step_time")
        return unit

    def _missing(self) -> str:
        """Return the error where a log has steps, but not in a unit of the objective."""
        return f"the log has steps, but no {self.objective}"

    def _extra(self, logged: LoggedSteps, rates: Mapping[str, list[float]], unit: str) -> dict[str, Value]:
        """Return what is recorded besides the objective."""
        printed = [step.tflops for step in logged.steady if step.tflops is not None]
        tflops: dict[str, Value] = {"tflops_per_gpu": long_run(printed, Direction.MAXIMIZE)} if printed else {}
        phases = {f"{PHASE}{name}": seconds for name, seconds in logged.phases.items()}
        return {**tflops, **phases, **logged.extra}
