"""The contract of a strategy: it picks points and learns their values, and knows nothing of commands or storage."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.registry import Registry
from zenith_tune.study.budget import Training
from zenith_tune.study.parameters import CategoricalParameter, Direction, Parameter, Params, Value
from zenith_tune.study.trial import Findings, Outcome, Prediction, Trial

if TYPE_CHECKING:
    from zenith_tune.layouts.layout_batch import LayoutBatch, PointTable


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedJob:
    """What a preset and the tuner know of a job; a strategy that needs none of it ignores it."""

    subject: PlanSubject | None = None
    """Model, cluster and job, where the preset knows them."""
    unplanned: str = "it has no job: let PresetTuner run it, or call prepare() with one first"
    """Why there is no subject, and what would give one."""
    layout: Callable[[Mapping[str, Value]], Layout | None] = lambda params: None
    """The layout of a point."""
    points: Callable[[], Iterable[Params]] = lambda: ()
    """Every point that the preset's own rules allow."""
    tables: Callable[[], Iterable[tuple[LayoutBatch, PointTable]] | None] = lambda: None
    """Every point with its layout, as arrays, where the preset can list them so."""
    phases: Callable[[], Mapping[str, tuple[str, ...]]] = dict
    """The phases of a step that each parameter touches, by the names that a trial has for them."""
    own_point: Callable[[], Params | None] = lambda: None
    """The point of the user's own command."""
    baseline: Callable[[], Trial | None] = lambda: None
    """The trial of that command, once it has run."""
    training: Training = field(default_factory=Training)
    """Length of the training that the study is for."""
    memory_limit_bytes: float | None = None
    """Memory per GPU that the best layout may use, where it is known."""
    num_slots: int = 1
    """Number of trials that may run side by side."""
    folder: Path | None = None
    """Folder for what a resumed study must find unchanged."""
    tell: Callable[[str], None] = lambda line: None
    """Output of a line to the user."""


class EvalFunction(Protocol):
    """The evaluation of points; raises TrialExhausted when the budget is spent."""

    def __call__(self, params: Mapping[str, Value]) -> float | None:
        """Return the point's value, or None where the trial failed or the point is pruned."""

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        """Return the whole trial: outcome, value, peak memory, step time, duration; `why` it was picked is recorded."""

    def submit(self, params: Mapping[str, Value], why: str = "") -> Future[Trial]:
        """Start a trial and return at once, so that several run side by side where the runner has room."""

    def has_room(self) -> bool:
        """Tell whether a submitted point would start at once; the trial that made room has its result by then."""
        return True


class PlainFunction(EvalFunction):
    """The evaluation of points by a plain function, which returns a value, or None for a point that failed."""

    def __init__(self, function: Callable[[Mapping[str, Value]], float | None]) -> None:
        self._function = function

    def __call__(self, params: Mapping[str, Value]) -> float | None:
        return self.run(params).value

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        value = self._function(dict(params))
        outcome = Outcome.ERROR if value is None else Outcome.OK
        return Trial(params=dict(params), outcome=outcome, value=None if value is None else float(value), why=why)

    def submit(self, params: Mapping[str, Value], why: str = "") -> Future[Trial]:
        future: Future[Trial] = Future()
        future.set_result(self.run(params, why))
        return future


def _taking_functions(optimize: Callable[..., None]) -> Callable[..., None]:
    """Return an `optimize` whose `eval_fn` may be a plain function."""

    @functools.wraps(optimize)
    def wrapped(
        self: TuningStrategy, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction
    ) -> None:
        optimize(self, eval_fn if hasattr(eval_fn, "submit") else PlainFunction(eval_fn), search_space, direction)

    return wrapped


class TuningStrategy(ABC):
    """A way to pick the points to try.

    >>> class FirstChoice(TuningStrategy):
    ...     ends_by_itself = True
    ...     def optimize(self, eval_fn, search_space, direction):
    ...         eval_fn({name: parameter.grid(1)[0] for name, parameter in search_space.items()})
    """

    ends_by_itself: ClassVar[bool] = False
    """Whether it runs to its end without a budget or a limit on repeats and prunes."""
    plans: ClassVar[bool] = False
    """Whether it needs model, cluster and job, which are looked up only then."""
    default_n_trials: ClassVar[int] = 50
    """The budget where the user sets none and the strategy does not end by itself."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "optimize" in vars(cls):
            cls.optimize = _taking_functions(cls.optimize)  # type: ignore[method-assign]

    def prepare(self, job: TunedJob) -> None:  # noqa: B027 - most strategies need nothing of it
        """Take the job before `optimize`; raises UsageError where the strategy cannot tune it."""

    @abstractmethod
    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        """Call `eval_fn`, which may be a plain function, until done; let TrialExhausted pass."""

    def max_trials(self, search_space: Mapping[str, Parameter]) -> int | None:
        """Return an upper bound on the trials that a run to the end takes, or None if there is none."""
        return None

    def expected_trials(self, search_space: Mapping[str, Parameter]) -> int | None:
        """Return how many trials a run to the end is expected to take, or None if unknown."""
        bound = self.max_trials(search_space)
        return bound if bound is not None or self.ends_by_itself else self.default_n_trials

    def scope(self) -> str:
        """Return what is searched in a few words, where the strategy can say it: `707 layouts fit`."""
        return ""

    def expected_best(self) -> Prediction | None:
        """Return what is expected of the best point before any trial, where the strategy predicts it."""
        return None

    def why_done(self) -> str | None:
        """Return why the strategy finished, in one line, where it has a reason to give."""
        return None

    def findings(self) -> Findings | None:
        """Return its results besides the best point."""
        return None


StrategyRegistry: Registry[TuningStrategy] = Registry(
    "strategy",
    "zenith_tune.strategies",
    {
        "grid": "zenith_tune.strategies.grid",
        "random": "zenith_tune.strategies.random",
        "optuna": "zenith_tune.strategies.optuna",
        "guided": "zenith_tune.strategies.guided.strategy",
        "megatron-heuristic": "zenith_tune.strategies.megatron_heuristic",
        "zero-progressive": "zenith_tune.strategies.zero_progressive.strategy",
    },
    contract=TuningStrategy,
    siblings={"phases": "rl"},
)


def listed_choices(
    search_space: Mapping[str, Parameter], sizes: Mapping[str, int], *, strategy: str, hint: str
) -> dict[str, tuple[Value, ...]]:
    """Return each parameter's choices; raises UsageError unless all have some, and `sizes` whole ones from a least."""
    choices = {name: each.choices for name, each in search_space.items() if isinstance(each, CategoricalParameter)}
    for name in [*sizes, *search_space]:
        if name not in search_space:
            raise UsageError(f"{strategy} needs {name!r} in the search space, but it is not there", hint=hint)
        if name not in choices:
            kind = type(search_space[name]).__name__
            raise UsageError(f"{strategy} needs {name!r} to be a CategoricalParameter, but it is a {kind}", hint=hint)
    for name, least in sizes.items():
        if any(type(value) is not int or value < least for value in choices[name]):
            problem = f"{strategy} needs {name!r} to hold whole numbers from {least}"
            raise UsageError(f"{problem}, but its choices are {list(choices[name])}", hint=hint)
    return choices


T = TypeVar("T")
R = TypeVar("R")


class TrialsUnderWay(Generic[T]):
    """Trials that run side by side, each with the strategy's own tag.

    A strategy looks first, learns the results, and only then picks: with room for one trial it knows every result
    before the next pick, and picks the same points each time.
    """

    def __init__(self, eval_fn: EvalFunction) -> None:
        self._eval_fn = eval_fn
        self._running: dict[Future[Trial], T] = {}

    def __len__(self) -> int:
        return len(self._running)

    def look(self) -> tuple[bool, list[tuple[T, Trial]]]:
        """Return whether there is room for another trial, and those that have ended since the last look."""
        has_room = self._eval_fn.has_room()  # asked before the results, so that none is missed that made room
        done = [future for future in self._running if future.done()]
        ended = [(self._running.pop(future), future.result()) for future in done]
        return has_room or not self._running, ended

    def start(self, tag: T, params: Mapping[str, Value], why: str = "") -> None:
        """Start a trial; let TrialExhausted pass."""
        self._running[self._eval_fn.submit(params, why)] = tag

    def wait(self) -> None:
        await_first(self._running)


_SIGNAL_CHECK_S = 1.0


def await_first(futures: Iterable[Future[T]]) -> None:
    """Block until one of some futures is done, ready to act on a signal.

    Python runs a signal's handler between two instructions of the main thread. A signal that comes just before this
    thread begins to wait, or that another thread receives, ends no wait: without a limit it would be lost.
    """
    futures = list(futures)
    while not wait(futures, _SIGNAL_CHECK_S, FIRST_COMPLETED).done:
        pass


def side_by_side(eval_fn: EvalFunction, walks: Iterable[Generator[Params, Trial, R]]) -> list[R]:
    """Run several walks at once: each yields points, is sent their trials, and returns its result.

    With room for one trial only, the walks run one after the other. A walk begins when there is room for it, so that
    there may be infinitely many.
    """
    under_way: TrialsUnderWay[tuple[int, Generator[Params, Trial, R]]] = TrialsUnderWay(eval_fn)
    found: dict[int, R] = {}
    coming = enumerate(walks)
    ready: list[tuple[int, Generator[Params, Trial, R], Trial | None]] = []
    is_all = False
    while True:
        has_room, ended = under_way.look()
        ready += [(index, walk, trial) for (index, walk), trial in ended]
        if has_room and not ready and not is_all:
            following = next(coming, None)
            is_all = following is None
            ready += [] if following is None else [(*following, None)]
        if has_room and ready:
            index, walk, trial = ready.pop(0)
            try:
                under_way.start((index, walk), next(walk) if trial is None else walk.send(trial))
            except StopIteration as end:
                found[index] = end.value
        elif under_way:
            under_way.wait()
        elif is_all and not ready:
            return [found[index] for index in sorted(found)]


def single(point: Params) -> Generator[Params, Trial, Trial]:
    """Return a walk of one point, whose result is its trial."""
    return (yield point)
