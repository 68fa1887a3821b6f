"""What a strategy is handed to try points with: prunes, recalls, limits, and only then runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from zenith_tune.errors import (
    ConsecutiveDuplicateLimitExceeded,
    ConsecutivePruneLimitExceeded,
    TrialExhausted,
    UsageError,
    ZenithTuneError,
)
from zenith_tune.record.export import trained_batch
from zenith_tune.record.server.other_tuners import OtherTuners, TakenOver
from zenith_tune.strategies.base import await_first
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, RunKey, Trial
from zenith_tune.tuning.config import StudyConfig
from zenith_tune.tuning.events import StudyListener
from zenith_tune.units import count

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """A point that a strategy asks for, and why."""

    params: Params
    why: str = ""


class TrialScheduler:
    """Answers to a strategy: from the rules, from the record, or by a real run.

    Two points that the study identifies alike are one run. `recorded` has the trials of earlier runs of this study:
    they are answered without running, and their part of the budget is spent already. A point that has the settings of
    the user's own command is answered by the run of that command, and costs nothing.
    """

    def __init__(
        self,
        config: StudyConfig,
        run_point: Callable[[Params, str, str], Trial],
        study: Study,
        listener: StudyListener,
        *,
        recorded: Mapping[RunKey, Trial],
        num_slots: int = 1,
        check_interrupted: Callable[[], None] = lambda: None,
        others: OtherTuners | None = None,
    ) -> None:
        self._config, self._identify, self._limits = config, config.identify, config.limits
        preset = self._preset = config.preset
        self._check_interrupted = check_interrupted
        self._others = others
        self._levers = preset.lever_space()
        self._run_point = run_point
        self._study = study
        self._listener = listener
        self._recorded = {run.identity: trial for run, trial in recorded.items() if run.rerun_of is None}
        self._answered: dict[str, Future[Trial]] = {}
        self._num_reserved = 0
        self._num_counted = len(self._recorded)
        self._duplicates = 0
        self._prunes = 0
        self._is_closed = False
        self._lock = threading.RLock()
        self._num_slots = num_slots
        self._num_busy = 0
        self._slots = threading.BoundedSemaphore(num_slots)
        self._pool = ThreadPoolExecutor(max_workers=num_slots, thread_name_prefix="trial")

    def continue_with(self, config: StudyConfig) -> None:
        """Answer by the limits of a study whose strategy was chosen again; no point was asked for yet."""
        self._config, self._limits = config, config.limits

    def __call__(self, params: Mapping[str, Value]) -> float | None:
        return self.run(params).value

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        future = self._answer(Point(dict(params), why), run_now=True)
        await_first([future])  # another tuner may be running it
        return future.result()

    def submit(self, params: Mapping[str, Value], why: str = "") -> Future[Trial]:
        return self._answer(Point(dict(params), why), run_now=False)

    def has_room(self) -> bool:
        with self._lock:  # by then every trial that made the room has its result
            return self._num_busy < self._num_slots

    @contextlib.contextmanager
    def leaving(self, num_trials: int) -> Iterator[None]:
        """Leave so many trials of the budget to what comes afterwards."""
        self._num_reserved = num_trials
        try:
            yield
        finally:
            self._num_reserved = 0

    def settle(self) -> None:
        """Wait for everything that was submitted; raises the first error that came of it."""
        errors = []
        for future in list(self._answered.values()):  # what another tuner runs may yet have to run here
            await_first([future])
            with contextlib.suppress(CancelledError):
                errors.append(future.exception())
        for error in filter(None, errors):
            raise error

    def drain(self) -> None:
        """Wait for everything that was submitted, after which nothing can be."""
        try:
            self.settle()
        finally:
            self._pool.shutdown(wait=True)

    def close(self) -> None:
        """Drop what was submitted and did not start; asking afterwards raises that the study is over."""
        self._is_closed = True
        for future in list(self._answered.values()):  # a thread may just be giving one back
            future.cancel()
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._others is not None:
            self._others.catch_up_if_possible()

    def _answer(self, point: Point, *, run_now: bool) -> Future[Trial]:
        params = point.params
        self._check_interrupted()
        if self._is_closed:
            raise TrialExhausted("the study is over")
        self._check(params)
        with self._lock:
            reason = self._preset.explain(params)
            if reason is None and self._preset.prune(params):  # a preset may have nothing but `prune`
                reason = f"pruned by {type(self._preset).__name__}"
            if reason is not None:
                return _done(self._pruned(params, reason))
            identity = self._identify(params)
            if identity in self._answered:
                return self._repeated(params, self._answered[identity])
            self._prunes = self._duplicates = 0
            if (known := self._recorded.get(identity)) is not None:
                future = self._answered[identity] = _done(known)
                self._listener.trial_recalled(known, self._preset.label(known.params))
                return future
            if (own := self._own_run(params, identity)) is not None:
                self._study.num_repeated += 1
                future = self._answered[identity] = _done(own)
                self._listener.point_repeated(own, self._preset.label(own.params))
                return future
            if self._others is None:
                self._take_from_budget()
            elif (theirs := self._ask_others(self._others, identity)) is not None:
                future = self._answered[identity] = Future()
                self._pass_on(theirs, future, point, identity)
                return future
            future = self._answered[identity] = Future()
            self._num_busy += 1
        future.add_done_callback(lambda done: self._give_back(done, identity) if done.cancelled() else None)
        if run_now:
            self._fulfil(future, point, identity)
        else:
            self._pool.submit(self._fulfil, future, point, identity)
        return future

    def _fulfil(self, future: Future[Trial], point: Point, identity: str) -> None:
        if not (future.running() or future.set_running_or_notify_cancel()):
            self._give_back(future, identity)
            return
        try:
            with self._slots:  # also for a strategy that mixes `run` and `submit`
                trial = self._run_point(point.params, identity, point.why)
        except TakenOver:
            self._leave_to_others(future, point, identity)
            return
        except BaseException as error:
            with self._lock:
                future.set_exception(error)
                self._num_busy -= 1
            if not isinstance(error, Exception):
                raise
            return
        with self._lock:  # whoever sees the room must see the result that made it
            future.set_result(trial)
            self._num_busy -= 1

    def _leave_to_others(self, future: Future[Trial], point: Point, identity: str) -> None:
        """Answer with what another tuner makes of a run that it has taken from this one."""
        with self._lock:
            self._num_busy -= 1
            try:
                theirs = self._others.ask(RunKey(identity), self._limits.n_trials) if self._others is not None else None
            except ZenithTuneError as error:
                future.set_exception(error)
                return
            self._pass_on(theirs or _done(None), future, point, identity)

    def _pass_on(self, theirs: Future[Trial | None], future: Future[Trial], point: Point, identity: str) -> None:
        """Answer with what another tuner makes of a run, which takes no slot here, or run it after all."""

        def answer(theirs: Future[Trial | None]) -> None:
            error = theirs.exception()
            trial = None if error is not None else theirs.result()
            with self._lock:
                if error is None and trial is None and not self._is_closed:
                    self._num_busy += 1
                    self._pool.submit(self._fulfil, future, point, identity)
                elif future.running() or future.set_running_or_notify_cancel():
                    if trial is not None:
                        future.set_result(trial)
                    else:
                        future.set_exception(error or TrialExhausted("the study is over"))

        theirs.add_done_callback(answer)

    def _pruned(self, params: Params, reason: str) -> Trial:
        self._study.num_pruned += 1
        self._prunes += 1
        limit = self._limits.consecutive_prunes
        if limit is not None and self._prunes > limit:
            raise ConsecutivePruneLimitExceeded(f"{limit} pruned points in a row; the last: {reason}")
        self._listener.point_pruned(params, self._preset.label(params), reason)
        return Trial(params=params, outcome=Outcome.PRUNED, cause=reason)

    def _repeated(self, params: Params, first: Future[Trial]) -> Future[Trial]:
        self._prunes = 0
        self._study.num_repeated += 1
        self._duplicates += 1
        limit = self._limits.consecutive_duplicates
        if limit is not None and self._duplicates > limit:
            raise ConsecutiveDuplicateLimitExceeded(f"{limit} points in a row had been tried before")
        again: Future[Trial] = Future()
        first.add_done_callback(lambda done: self._repeat(done, params, again))
        return again

    def _repeat(self, first: Future[Trial], params: Params, again: Future[Trial]) -> None:
        if first.cancelled():
            again.cancel()
            return
        if (error := first.exception()) is not None:
            again.set_exception(error)
            return
        trial = replace(first.result(), params=params, outcome=Outcome.DUPLICATE)
        self._listener.point_repeated(trial, self._preset.label(params))
        again.set_result(trial)

    def _take_from_budget(self) -> None:
        if self._limit is not None and self._num_counted >= self._limit:
            raise self._exhausted()
        self._num_counted += 1

    def _ask_others(self, others: OtherTuners, identity: str) -> Future[Trial | None] | None:
        try:
            return others.ask(RunKey(identity), self._limit)
        except TrialExhausted:
            raise self._exhausted() from None

    @property
    def _limit(self) -> int | None:
        num_trials = self._limits.n_trials
        return None if num_trials is None else num_trials - self._num_reserved

    def _exhausted(self) -> TrialExhausted:
        kept = f"; {self._num_reserved} reserved for settings and confirmation" if self._num_reserved else ""
        return TrialExhausted(f"budget of {count(self._limits.n_trials or 0, 'run')} used{kept}")

    def _give_back(self, future: Future[Trial], identity: str) -> None:
        """Forget a trial that the strategy cancelled before it started: at once, so that it can ask for another."""
        with self._lock:
            if self._is_closed or self._answered.get(identity) is not future:
                return
            self._num_counted -= 1
            self._num_busy -= 1
            del self._answered[identity]
            if self._others is not None:
                self._others.give_back(RunKey(identity))

    def _own_run(self, params: Params, identity: str) -> Trial | None:
        """Return the run of the user's own command where a point has its very settings, its batch included."""
        own = self._study.first_baseline
        if own is None or identity not in self._config.own_identities:
            return None
        layout, batch = self._preset.layout(params), trained_batch(own)
        if layout is not None and batch is not None and layout.global_batch != batch:
            return None
        return replace(own, params=params, identity=identity)

    def _check(self, params: Params) -> None:
        space = self._preset.get_search_space()  # not before: what the user's own command shows may change it
        if params.keys() - self._levers.keys() != space.keys():
            raise UsageError(f"a point must give {', '.join(space)}, but got {', '.join(params) or 'nothing'}")
        for name, value in params.items():
            parameter = space.get(name) or self._levers[name]
            if not parameter.contains(value):
                raise UsageError(f"{name} must lie in {parameter}, but got {value!r}")


def _done(trial: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(trial)
    return future
