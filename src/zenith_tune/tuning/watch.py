"""Watches a trial while it runs, and ends it once its value is known, or once it has printed nothing for too long."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import Progress, TuningEvaluator
from zenith_tune.evaluators.early_stop import EarlyStop, Judgement, Stakes
from zenith_tune.runners.base import End, Job, JobResult
from zenith_tune.study.study import Study
from zenith_tune.study.trial_log import TrialLog
from zenith_tune.units import format_seconds

FIRST_RUN_S = 1800.0
"""The limit before any run has gone well: downloads and compilation may come first."""
LEAST_SILENCE_S = 300.0
SILENCE_MARGIN = 5.0
"""The limit, as a multiple of the longest silence of a trial that went well."""
NUM_LINES = 4
"""Warnings about a silent trial before it is ended."""
FIRST_OUTPUT_S = 60.0
"""A trial that has printed nothing by then is spoken of."""
FIRST_STEP_S = 600.0
"""A trial that prints, but has ended no step by then, is spoken of."""


class SilenceLimit:
    """The longest time that trials may print nothing, by the longest silence of those that went well."""

    def __init__(self, fixed_s: float | None = None) -> None:
        self._first_s = max(FIRST_RUN_S, fixed_s or 0.0)
        self._longest_s: float | None = None

    def observe(self, silence_s: float) -> None:
        """Take in the longest silence of a trial that went well."""
        self._longest_s = max(self._longest_s or 0.0, silence_s)

    @property
    def seconds(self) -> float:
        """The limit as it is by now; a longer --timeout is taken for the time that a first run may need."""
        return self._first_s if self._longest_s is None else max(LEAST_SILENCE_S, SILENCE_MARGIN * self._longest_s)


class SilenceWatch:
    """The growth of one trial's log; a warning of a long silence, or of a first step that never ends, to `notify`."""

    def __init__(self, limit: SilenceLimit, notify: Callable[[str], None]) -> None:
        self.longest_s = 0.0
        self._limit, self._notify = limit, notify
        self._seen: tuple[Path, int] | None = None
        self._since_s = 0.0
        self._num_warnings = 0
        self._is_mute_noted = self._is_step_noted = False
        self._awaits_step = False

    def look(self, log_path: Path, now_s: float) -> str | None:
        """Return why the trial is to be ended, or None where it is not; one that waits for its machine has no log."""
        try:
            seen = (log_path, log_path.stat().st_size)
        except OSError:
            self._seen = None
            return None
        if seen != self._seen:
            self._seen, self._since_s, self._num_warnings = seen, now_s, 0
            return None
        silence_s, limit_s = now_s - self._since_s, self._limit.seconds
        self.longest_s = max(self.longest_s, silence_s)
        if silence_s >= limit_s:
            return f"no output for {format_seconds(silence_s)}{', before its first step' * self._awaits_step}"
        if not self._is_mute_noted and not seen[1] and silence_s >= FIRST_OUTPUT_S:
            self._is_mute_noted = True
            so_far, most = format_seconds(silence_s), format_seconds(limit_s)
            self._notify(f"it has printed nothing in {so_far}: it is ended after {most} of that")
        if (num_parts := int(silence_s / limit_s * (NUM_LINES + 1))) > self._num_warnings:
            self._num_warnings = num_parts
            so_far, most = format_seconds(silence_s), format_seconds(limit_s)
            self._notify(f"no output for {so_far}: it is ended after {most} of that")
        return None

    def see_steps(self, ran_s: float, *, any_ended: bool) -> None:
        """Take in whether a step has ended by now, and say once that none has for long."""
        self._awaits_step = not any_ended
        if self._awaits_step and not self._is_step_noted and ran_s >= FIRST_STEP_S:
            self._is_step_noted = True
            limits = f"--timeout ends it, or {format_seconds(self._limit.seconds)} without output"
            self._notify(f"it prints, but has shown no step in {format_seconds(ran_s)}: {limits}")


FIRST_LOOK_S = 1.0
"""A trial of a fraction of a second is over before anything is saved by ending it."""
CANCELLED_BY_HAND = "cancelled by hand"
_MIN_PAUSE_S = 0.2
_MAX_PAUSE_S = 1.0
"""The longest that a trial continues after its value is known, or after it was cancelled."""
AFTER_LAST_S = 5.0
"""How long a trial may take to end by itself after its last iteration."""
_PAUSE_SHARE = 0.01
"""The pause, as a share of the time the trial has run."""
_LOOK_SHARE = 0.01
"""The most of a trial's time that is spent on looking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnd:
    """An early end: its reason, and the log up to then, because output during the shutdown does not count."""

    reason: str
    log: str


@dataclass(slots=True, kw_only=True)
class _Looks:
    """What the looks at a log have shown by now."""

    before_first_s: float | None = None
    """When nothing but the start of the run was to be seen yet, in seconds of the run."""
    after_last: tuple[float, EarlyEnd] | None = None
    """When the last iteration was seen, and how the run ends if it does not end by itself."""


@dataclass(frozen=True, slots=True)
class TrialWatch:
    """A wait for a job, with a look at its log now and then."""

    evaluator: TuningEvaluator
    early_stop: EarlyStop | None
    metadata: Mapping[str, Any]
    stakes: Callable[[], Stakes] = Stakes
    _: KW_ONLY
    on_progress: Callable[[Progress, Judgement | None], None] = lambda progress, judgement: None
    is_cancelled: Callable[[], bool] = lambda: False
    limit_s: Callable[[], float | None] = lambda: None
    silence: SilenceWatch | None = None
    clock: Callable[[], float] = time.monotonic

    def wait(self, job: Job) -> tuple[JobResult, EarlyEnd | None]:
        """Block as `Job.wait` does; a job whose value is known is ended, and why is returned with its result."""
        start, pause_s, looks = self.clock(), FIRST_LOOK_S, self.evaluator.shows_progress
        looked_s, seen, began, shown = 0.0, 0, start, _Looks()
        while (result := self._pause(job, pause_s, start)) is None:
            before, began = began, self.clock()
            pause_s = min(max((began - start) * _PAUSE_SHARE, _MIN_PAUSE_S), _MAX_PAUSE_S)
            size = _size(job.log_path) if looks else seen
            if shown.after_last is not None and began - shown.after_last[0] >= AFTER_LAST_S:
                return self._ended(job, shown.after_last[1])
            # What was spent on looking counts against the whole time: a long start-up pays for many looks at its end.
            if size == seen or looked_s > (began - start) * _LOOK_SHARE:
                continue
            seen, used = size, time.thread_time()  # not the clock: on a busy machine a look waits for a core
            try:
                early = self._look(job, began - start, before - start, shown)
            except Exception:  # an evaluator is a plug-in: the trial runs to its end, where its faults are reported
                early, looks = None, False
            if early is not None:
                return self._ended(job, early)
            looked_s += time.thread_time() - used
        return result, None

    def _ended(self, job: Job, early: EarlyEnd) -> tuple[JobResult, EarlyEnd | None]:
        job.stop()
        result = job.wait()
        return result, early if result.end is End.STOPPED else None

    def _pause(self, job: Job, pause_s: float, start: float) -> JobResult | None:
        """Wait between two looks, and end the job where somebody asked for that, or at a limit that shrank."""
        result = job.wait(pause_s)
        if result is not None:
            return result
        if self.is_cancelled():
            return _stopped(job, End.REVOKED, CANCELLED_BY_HAND)
        if self.silence is not None and (reason := self.silence.look(job.log_path, self.clock())) is not None:
            return _stopped(job, End.SILENT, reason)
        limit_s = self.limit_s()
        if limit_s is not None and self.clock() - start >= limit_s:
            return _stopped(job, End.TIMED_OUT)
        return None

    def _look(self, job: Job, elapsed_s: float, looked_s: float, shown: _Looks) -> EarlyEnd | None:
        """Judge a log that has grown since the look before, at `looked_s`."""
        text = TrialLog(job.log_path).text()
        log = text[: text.rfind("\n") + 1]  # half a number reads as a whole one
        progress = self.evaluator.progress(log, {**self.metadata, "duration": elapsed_s})
        if self.silence is not None:
            self.silence.see_steps(elapsed_s, any_ended=progress is not None)
        if progress is None:
            return None
        if progress.step_s is None and progress.num_iterations:  # by its pace, since the log does not say
            if shown.before_first_s is None:
                shown.before_first_s = looked_s
            progress = replace(progress, next_s=(elapsed_s - shown.before_first_s) / progress.num_iterations)
        judgement = None
        if self.early_stop is not None:
            judgement = self.early_stop.judge(progress, self.evaluator.direction, self.stakes())
        self.on_progress(progress, judgement)
        if progress.is_last and judgement is not None and shown.after_last is None:
            shown.after_last = self.clock(), EarlyEnd(reason="known after its last iteration", log=log)
        return EarlyEnd(reason=judgement.reason, log=log) if judgement is not None and judgement.ends else None


def _stopped(job: Job, end: End, reason: str = "") -> JobResult:
    """End a job for another reason than that its value is known; one that was over by then keeps its result."""
    job.stop()
    result = job.wait()
    return replace(result, end=end, reason=reason) if result.end is End.STOPPED else result


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # there is none yet
        return 0


MAX_TIMEOUT_S = 1e7
MAX_MARGIN = 1000.0
_WHOLE_RUN = 10
"""How many times as long a whole run is taken to be as a best one that was ended early."""
_SLACK_S = 0.5
"""A margin on a run of milliseconds would end trials for the operating system's hiccups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """The limits on a trial's seconds: a fixed number, one by the best trial so far, or both."""

    fixed_s: float | None = None
    dynamic: bool = False
    margin: float = 1.5
    """How many times the best trial's duration a trial may take under `dynamic`."""

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if self.fixed_s is not None and not 0 < self.fixed_s <= MAX_TIMEOUT_S:
            limit = f"above 0 and at most {MAX_TIMEOUT_S:g} seconds"
            raise UsageError(f"--timeout must be {limit}, but got {self.fixed_s:g}")
        if not 1 <= self.margin <= MAX_MARGIN:
            raise UsageError(f"--timeout-margin must be from 1 to {MAX_MARGIN:g}, but got {self.margin:g}")

    def limit_s(self, study: Study) -> float | None:
        """Return the limit of the next trial; the dynamic one never applies before the first success."""
        limits = [] if self.fixed_s is None else [self.fixed_s]
        best = study.fastest
        if self.dynamic and best is not None and best.alone_s is not None:
            duration_s = best.alone_s * (_WHOLE_RUN if best.early else 1)
            limits.append(max(duration_s * self.margin, duration_s + _SLACK_S))
        return min(limits, default=None)

    def describe(self) -> str | None:
        """Say in one line how trials are limited."""
        parts = []
        if self.fixed_s is not None:
            parts.append(f"{self.fixed_s:g} s")
        if self.dynamic:
            parts.append(f"{self.margin:g} times the best trial's duration (at least {_SLACK_S:g} s more than it)")
        return f"a trial ends after {', or '.join(parts)}" if parts else None
