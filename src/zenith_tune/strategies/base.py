"""The contract of a strategy: it picks points and learns their values, and knows nothing of commands or storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import Future
from typing import ClassVar, Protocol

from zenith_tune.direction import Direction
from zenith_tune.strategies.findings import Findings
from zenith_tune.strategies.tuned_job import TunedJob
from zenith_tune.study.parameters import Parameter, Value
from zenith_tune.study.trial import Trial


class EvalFunction(Protocol):
    """Try one point; raises TrialExhausted when the budget is spent."""

    def __call__(self, params: Mapping[str, Value]) -> float | None:
        """Return the point's value, or None where the trial failed or the point is pruned."""

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        """Return the whole trial: outcome, value, peak memory, step time, duration; `why` it was picked is kept."""

    def submit(self, params: Mapping[str, Value], why: str = "") -> Future[Trial]:
        """Start a trial and return at once, so that several run side by side where the runner has room."""

    def has_room(self) -> bool:
        """Tell whether a submitted point would start at once; by then what made the room has its result."""
        return True


class TuningStrategy(ABC):
    """Pick the points to try.

    >>> class FirstChoice(TuningStrategy):
    ...     ends_by_itself = True
    ...     def optimize(self, eval_fn, search_space, direction):
    ...         eval_fn({name: parameter.grid(1)[0] for name, parameter in search_space.items()})
    """

    ends_by_itself: ClassVar[bool] = False
    """True: runs to its end without a budget, and no limit on repeats or prunes applies."""
    plans: ClassVar[bool] = False
    """True: needs model, cluster and job, which are looked up only then."""
    default_n_trials: ClassVar[int] = 50
    """The budget, where the user gives none and the strategy does not end by itself."""

    def prepare(self, job: TunedJob) -> None:  # noqa: B027 - most strategies need nothing of it
        """Hear of the job before `optimize`; raises UsageError where the strategy cannot tune it."""

    @abstractmethod
    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        """Call `eval_fn` until done; TrialExhausted passes through."""

    def max_trials(self, search_space: Mapping[str, Parameter]) -> int | None:
        """Return an upper bound on the trials that a run to the end takes, or None if there is none."""
        return None

    def why_done(self) -> str | None:
        """Return why the strategy came to its end, in one line, where it has more to say than that it did."""
        return None

    def findings(self) -> Findings | None:
        """Return what it has found out besides the best point."""
        return None
