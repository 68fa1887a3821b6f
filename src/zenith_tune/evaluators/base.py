"""The contract of an evaluator, which reads a trial's log and returns its value, and how one is chosen by its name."""

from __future__ import annotations

import re
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.registry import Registry, construct
from zenith_tune.study.parameters import Direction, Value
from zenith_tune.study.precision import relative_error

BATCH = "global_batch_size"
"""The samples of a step, under `extra`."""


class OtherSettingsError(ValueError):
    """A run without a value, since it trained with other settings than its trial was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The value of one log, with its spread and other figures."""

    value: float
    unit: str = ""
    spread: float | None = None
    """Relative spread of the value over steady iterations: 0.01 is 1%."""
    error: float | None = None
    """Relative standard error of the value; None for a single iteration."""
    drift: float | None = None
    """Relative distance of some successive iterations from the median of all; None for too few."""
    num_samples: int | None = None
    step_s: float | None = None
    peak_memory_bytes: int | None = None
    extra: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The iterations so far of a trial that still runs."""

    values: Sequence[float]
    """The value of each steady iteration, in order."""
    value: float | None = None
    """The value that `measure` would return by now; None: the median."""
    num_iterations: int
    """Iterations so far, warm-up included."""
    unit: str = ""
    step_s: float | None = None
    """Seconds of a training step; None where the log does not show them."""
    next_s: float | None = None
    """Seconds that the next iteration takes; None: those of a step."""
    common_error: float = 0.0
    """Relative standard error that all values share, such as that of the line they are extrapolated by."""
    peak_memory_bytes: int | None = None
    """Peak memory so far, where the log shows it."""
    is_last: bool = False
    """Whether no other iteration follows: a run may evaluate and save for long after its last."""

    @property
    def error(self) -> float:
        """The relative standard error of the value, where there are at least two."""
        return relative_error(self.values, self.common_error)

    @property
    def latest(self) -> float | None:
        """The value by now; None where there is no steady iteration yet."""
        if self.value is not None or not self.values:
            return self.value
        return statistics.median(self.values)


class TuningEvaluator(ABC):
    """The contract of an evaluator, which reads a trial's value from its log.

    >>> class LastNumber(TuningEvaluator):
    ...     def evaluate(self, stdout, metadata):
    ...         return float(stdout.split()[-1])
    >>> LastNumber().evaluate("loss 0.5", {})
    0.5
    """

    direction: Direction = Direction.MINIMIZE
    objectives: ClassVar[Mapping[str, Direction]] = {}
    """Names for `--objective`, where an evaluator can read several values."""
    reads_short_steps: ClassVar[bool] = False
    """Whether it knows the step of the whole batch by steps of fewer micro-batches."""

    @abstractmethod
    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        """Return the value, or raise ValueError where it is not there.

        `metadata` has trial_id, command, parameters and duration (seconds).
        """

    def with_objective(self, name: str) -> TuningEvaluator:
        """Return an evaluator of the same log that reads another of its objectives."""
        raise UnknownNameError("objective", name, self.objectives)

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value together with its spread, step time and memory, where the log shows them."""
        return Measurement(value=self.evaluate(stdout, metadata))

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the steady iterations so far of a trial that still runs, or None where there are none yet.

        The log may end in the middle of a line. Without this method trials run to their end.
        """
        return None

    @property
    def measures_time(self) -> bool:
        """Whether the value is a time or a speed, so that a run which takes longer is a worse one."""
        return False

    @property
    def shows_progress(self) -> bool:
        """Whether trials may be ended early."""
        return type(self).progress is not TuningEvaluator.progress

    def describe(self) -> str:
        """Say in one line what is measured: two studies are comparable if this line is the same."""
        return f"{type(self).__name__}, {self.direction}"


EvaluatorRegistry: Registry[TuningEvaluator] = Registry(
    "evaluator",
    "zenith_tune.evaluators",
    {
        "duration": "zenith_tune.evaluators.duration",
        "json": "zenith_tune.evaluators.json_lines",
        "regex": "zenith_tune.evaluators.regex",
        "megatron": "zenith_tune.presets.megatron.evaluator",
        "megatron-bridge": "zenith_tune.presets.megatron_bridge.evaluator",
        "accelerate": "zenith_tune.presets.accelerate.evaluator",
        "trainer": "zenith_tune.presets.trainer.evaluator",
        "deepspeed": "zenith_tune.presets.deepspeed.evaluator",
        "torchtitan": "zenith_tune.presets.torchtitan.evaluator",
    },
    contract=TuningEvaluator,
)


_NAME = re.compile(r"[A-Za-z_][\w-]*", re.ASCII)


def is_objective_name(objective: str) -> bool:
    """Tell whether `--objective` has a name; a pattern is never one, since it must have a group."""
    return _NAME.fullmatch(objective) is not None


def choose_evaluator(
    evaluator: str | TuningEvaluator | None,
    args: Mapping[str, Any] | None,
    objective: str | None,
    *,
    own: Callable[[], TuningEvaluator],
    defaults: Mapping[str, Any],
) -> TuningEvaluator:
    """Return the evaluator that is given or named, else the preset's `own`, at `objective` where one is named.

    `defaults` are used for arguments of a named evaluator that are not given.
    """
    if isinstance(evaluator, str):
        cls = EvaluatorRegistry.get(evaluator)
        chosen = construct(cls, args or {}, f"evaluator {evaluator}", defaults=defaults)
    elif args:
        raise UsageError("--evaluator-args belong to an evaluator", hint="name it by --evaluator")
    else:
        chosen = evaluator or own()
    if objective is None:
        return chosen
    if objective in chosen.objectives:
        return chosen.with_objective(objective)
    unknown = UnknownNameError("objective", objective, chosen.objectives)
    raise UsageError(f"{unknown} Or give a pattern with one group around the number, such as '{objective}: (\\S+)'.")
