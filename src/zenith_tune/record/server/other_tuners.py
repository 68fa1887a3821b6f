"""The other tuners of a study: which runs they have, what came of them, and what the dead ones left."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from zenith_tune.errors import StudyError, ZenithTuneError
from zenith_tune.record.record import StudyRecord
from zenith_tune.record.server.claims import Claims, run_key
from zenith_tune.record.storage import is_away
from zenith_tune.study.trial import Outcome, RunKey, Trial


class Heartbeat:
    """Calls of `show` from a thread of its own; a server that is away is asked again at the next beat."""

    def __init__(self, show: Callable[[], None], beat_s: float) -> None:
        self._show = show
        self._beat_s = beat_s
        self._is_over = threading.Event()
        self._since = time.monotonic()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    @property
    def steady_s(self) -> float:
        """For how long every beat has reached the server: whoever was cut off cannot judge the silence of others."""
        return time.monotonic() - self._since

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._is_over.wait(self._beat_s):
            try:
                self._show()
            except Exception as error:
                if not is_away(error):
                    raise
                self._since = time.monotonic()


class TakenOver(ZenithTuneError):  # noqa: N818 - it says what happened to a trial, not what went wrong
    """Another tuner took over a trial, because it heard nothing from this one for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """The intervals at which tuners of one study check on one another."""

    beat_s: float = 5.0
    """Seconds between two signs of life."""
    stale_s: float = 60.0
    """Seconds of silence after which a tuner counts as dead."""
    poll_s: float = 1.0
    """Seconds between two looks at the results of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    limit: int | None
    is_baseline: bool
    answer: Future[Trial | None] = field(default_factory=Future)


class OtherTuners:
    """The other tuners of a study; one thread looks after all that this tuner waits for.

    `take_in` gets every trial that another tuner finished. `recover` is handed the trials of dead tuners: it ends
    each one in the record, or returns True where its job continues and is to be followed here. `check` raises when this
    tuner is to stop.
    """

    def __init__(
        self,
        record: StudyRecord,
        *,
        take_in: Callable[[Trial], None],
        recover: Callable[[Trial], bool],
        check: Callable[[], None],
        rhythm: Rhythm | None = None,
    ) -> None:
        if record.claims is None:
            raise StudyError("only a study on a database server has several tuners")
        self._record = record
        self._claims: Claims = record.claims
        self._take_in, self._recover, self._check = take_in, recover, check
        self._rhythm = rhythm or Rhythm()
        self._lock = threading.Lock()
        self._looking = threading.Lock()
        self._waiting: dict[str, _Wait] = {}
        self._results: dict[str, Trial] = {}
        self._followed: dict[str, Trial] = {}
        """Trials of dead tuners whose jobs continue, until this tuner asks for them."""
        self._handed_over: set[str] = set()
        self._seen: set[int] = set()
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._claims.join()
        self._heartbeat = Heartbeat(self._claims.show, self._rhythm.beat_s)

    def begin(self, known: Iterable[int]) -> None:
        """Watch the others from now on; the trials of these numbers are known already."""
        self._seen |= set(known)
        self._thread = threading.Thread(target=self._look_on, name="other tuners", daemon=True)
        self._thread.start()

    def ask(self, asked: RunKey, limit: int | None = None) -> Future[Trial | None] | None:
        """Claim a run: None where it is this tuner's now.

        Else what comes of it elsewhere: a trial, or None where this tuner has to run it after all. Raises
        TrialExhausted where all tuners together have spent the budget of `limit` trials.
        """
        run = run_key(asked)
        with self._lock:
            if run in self._followed:
                self._follow(run)
                return None
        if run not in self._results and self._claims.take(run, limit, is_baseline=asked.is_baseline):
            return None
        wait = _Wait(limit=limit, is_baseline=asked.is_baseline)
        if run in self._results:
            wait.answer.set_result(self._results[run])
            return wait.answer
        with self._lock:
            if self._error is not None:
                raise self._error
            return self._waiting.setdefault(run, wait).answer

    def give_back(self, claimed: RunKey) -> None:
        self._claims.end(run_key(claimed), is_free=True)

    def holds(self, asked: RunKey) -> bool:
        """Tell whether this tuner has claimed a run, and not begun it."""
        run = run_key(asked)
        return run in self._handed_over or self._claims.holds(run)

    def own(self, number: int) -> None:
        """Remember a trial that this tuner runs itself, and need not read from the record."""
        self._seen.add(number)

    def recover_left(self) -> None:
        """Deal with the trials of tuners that are gone."""
        # Judged by silence only if this tuner has heard the server all the while.
        is_judge = self._thread is None or self._heartbeat.steady_s > self._rhythm.stale_s
        for left in self._claims.adopt(stale_s=self._rhythm.stale_s if is_judge else None):
            views = self._record.trials_of_claim(left.claim)
            running = [view.trial for view in views if view.is_running]
            if not running:
                is_free = all(view.trial.outcome is Outcome.CANCELLED for view in views)
                self._claims.end(left.run, is_free=is_free)
            elif self._recover(running[0]):
                with self._lock:
                    self._followed[left.run] = running[0]

    def catch_up(self) -> None:
        """Take in what the others have finished."""
        with self._looking:
            for trial in self._record.finished(besides=self._seen):
                self._seen.add(trial.number)
                if trial.outcome is not Outcome.CANCELLED:
                    self._take_in(trial)
                    self._results[run_key(trial.key)] = trial

    def catch_up_if_possible(self) -> None:
        """Take in what the others have finished, unless the server is away: then what is known must do."""
        with contextlib.suppress(StudyError):
            self.catch_up()

    def close(self) -> None:
        """Leave the study to the others."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()
        self._heartbeat.close()
        with contextlib.suppress(Exception):  # a server that is away: the others will notice by themselves
            self._claims.leave()

    def _follow(self, run: str) -> None:
        self._handed_over.add(run)
        self._seen.add(self._followed.pop(run).number)

    def _look_on(self) -> None:
        while not self._is_over.wait(self._rhythm.poll_s):
            try:
                self._check()
                self.catch_up()
                self.recover_left()
                self._answer()
            except BaseException as error:  # also that this tuner is to stop: no answer will come
                with self._lock:
                    self._error = error
                    waiting, self._waiting = list(self._waiting.values()), {}
                for wait in waiting:
                    wait.answer.set_exception(error)
                return

    def _answer(self) -> None:
        """Answer what is waited for, where an answer is there, or no other tuner is left to give one."""
        with self._lock:
            waiting = dict(self._waiting)
        taken = self._claims.taken(waiting) if waiting else set()
        for run, wait in waiting.items():
            if run in self._results:
                self._set(run, self._results[run])
            elif run in self._followed:
                self._follow(run)
                self._set(run, None)
            elif run not in taken:
                self._claim_late(run, wait)

    def _claim_late(self, run: str, wait: _Wait) -> None:
        try:
            if self._claims.take(run, wait.limit, is_baseline=wait.is_baseline):
                self._set(run, None)
        except ZenithTuneError as error:  # the budget was spent on something else meanwhile
            with self._lock:
                self._waiting.pop(run)
            wait.answer.set_exception(error)

    def _set(self, run: str, answer: Trial | None) -> None:
        with self._lock:
            wait = self._waiting.pop(run, None)
        if wait is not None:
            wait.answer.set_result(answer)
