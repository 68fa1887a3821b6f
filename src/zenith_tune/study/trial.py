"""One run of the training command: what was asked, how it ended and what it measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from zenith_tune.study.parameters import Value
from zenith_tune.study.precision import TO_90
from zenith_tune.units import format_value


class Outcome(StrEnum):
    """How a trial ended."""

    OK = "ok"
    OOM = "oom"
    TIMEOUT = "timeout"
    ERROR = "error"
    PRUNED = "pruned"
    DUPLICATE = "duplicate"
    CANCELLED = "cancelled"


YOUR_COMMAND = "your command"
"""What the user's own command, run as it is, is called in place of a layout."""
AGAIN = " (again)"
"""The end of the label of a run that repeats another one."""
NOT_RUN = -1
"""The number of a point that never ran: one that was pruned, or valued by a plain function."""

CONFIRMED_ON = "confirmed_on"
"""The name in `extra` of what a run that confirms a trial met beyond it, or why it could not, in a few words."""
START = "start"
"""The name in `extra` of what its start took, stage by stage, in a few words."""
SAVED_START = "saved_start_s"
"""The name in `extra` of the seconds of a start that it shared with a trial before it."""

PHASE = "phase:"
"""The beginning of the names in `extra` of the seconds of a step's phases."""

UNKNOWN_ERROR = 0.0
"""The standard error of a value of which nothing is known, such as that of a plain function."""


class RunKey(NamedTuple):
    """What distinguishes a run from the others of its study; one that is tried again after a failure has the same."""

    identity: str
    is_baseline: bool = False
    rerun_of: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A trial's outcome; `value` is None unless it went well, so that a failed trial is never best."""

    params: Mapping[str, Value]
    outcome: Outcome
    value: float | None = None
    cause: str | None = None
    """Why it did not go well, in one line."""
    failure: str | None = None
    """What kind of failure it was, such as "out of memory" or "configuration"."""
    number: int = NOT_RUN
    """The trial's number in its study."""
    command: str = ""
    """The exact command, with secrets masked."""
    identity: str = ""
    """The command and the files that ran: two points with the same identity are one run under two names."""
    rerun_of: int | None = None
    """The number of the trial that this run repeats to confirm it; of your own command, that of its run before."""
    folder: Path | None = None
    duration_s: float | None = None
    unit: str = ""
    """The unit of `value`, for people."""
    spread: float | None = None
    """Relative spread of the value over steady iterations, or over repeats: 0.01 is 1%."""
    error: float | None = None
    """Relative standard error of the value; None where it is not known."""
    drift: float | None = None
    """Relative distance of some successive iterations from the median of all; None where there are too few."""
    step_s: float | None = None
    """Seconds per training iteration, where the log has them."""
    peak_memory_bytes: int | None = None
    num_runs: int = 1
    """The number of runs; `duration_s` is that of one."""
    num_samples: int | None = None
    """The number of steady iterations behind `value`."""
    early: str | None = None
    """Why it was stopped early, "known ..." or "behind ..."; None where it ran to its end."""
    is_baseline: bool = False
    why: str = ""
    """Why the strategy picked it, in one line."""
    extra: Mapping[str, Value] = field(default_factory=dict)

    def __repr__(self) -> str:
        name = YOUR_COMMAND if self.is_baseline else f"trial {self.number}"
        found = str(self.cause) if self.value is None else format_value(self.value, self.unit)
        return f"Trial({name}: {self.outcome}, {found}; {dict(self.params)})"

    @property
    def mark(self) -> str:
        """What goes behind the trial's label wherever it is shown."""
        return AGAIN if self.is_rerun else ""

    @property
    def is_rerun(self) -> bool:
        """Whether it ran another trial again: it then stands for that one."""
        return self.rerun_of is not None

    @property
    def is_searched(self) -> bool:
        """Whether it counts as a trial: neither your own command nor a run that repeats another one."""
        return not (self.is_baseline or self.is_rerun)

    @property
    def key(self) -> RunKey:
        """What distinguishes this run from the others of its study."""
        return RunKey(self.identity, self.is_baseline, self.rerun_of)

    @property
    def was_cut_off(self) -> bool:
        """Whether it ended with its study; one that was cancelled by hand or by a scheduler has a `failure`."""
        return self.outcome is Outcome.CANCELLED and self.failure is None

    @property
    def standard_error(self) -> float:
        """How well the value is known, relatively; of a run of an earlier release, by its spread."""
        if self.error is not None:
            return self.error
        return UNKNOWN_ERROR if self.spread is None else self.spread / math.sqrt(max(self.num_samples or 1, 1))

    @property
    def half_width(self) -> float | None:
        """Half of the value's 90% interval, relatively; None where nothing is known of it."""
        return None if self.error is None and self.spread is None else TO_90 * self.standard_error

    @property
    def alone_s(self) -> float | None:
        """Seconds of a run of it with a start of its own; None where it did not run."""
        saved_s = self.extra.get(SAVED_START)
        return self.duration_s + saved_s if self.duration_s and isinstance(saved_s, float) else self.duration_s

    @property
    def phases(self) -> dict[str, float]:
        """Seconds of each phase of a step, the longest first; empty where its log shows none."""
        named = {name.removeprefix(PHASE): value for name, value in self.extra.items() if name.startswith(PHASE)}
        return {name: float(value) for name, value in named.items() if isinstance(value, int | float)}

    @property
    def ok(self) -> bool:
        """Whether the trial went well, also where it repeats one that did."""
        return self.value is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted step time, and the memory where that was estimated too."""

    step_s: float
    by: str
    """The source of the prediction, in a few words."""
    error: float = 0.0
    """Relative standard error of the step time."""
    memory_bytes: float | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """Parts of the step that are worth showing, by name, such as its slowest stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """A table that is shown under the trials."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    lines: tuple[str, ...] = ()
    predictions: Mapping[int, Prediction] = field(default_factory=dict)
    """Predictions by trial number, where they differ from the planner's."""
