"""Runs one point: starts the command, waits for it, says how it ended and what it measured."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zenith_tune.errors import SystemFaultError, UsageError
from zenith_tune.evaluators.base import Measurement, OtherSettingsError, Progress
from zenith_tune.evaluators.early_stop import Judgement, Stakes
from zenith_tune.evaluators.failures.failures import Failure, FailureKind, classify, hidden_failure
from zenith_tune.evaluators.failures.no_effect import disagreement
from zenith_tune.hooks.injection import start_line, start_seconds
from zenith_tune.record.export import trial_as_json
from zenith_tune.runners.base import End, Job, JobResult, OnState, Runner, nobody_listens
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.secrets import mask, mask_file
from zenith_tune.study.faults import RetryPolicy, disk_full, is_system_fault
from zenith_tune.study.files import TrialFolder, make_folder, write_atomically, write_json
from zenith_tune.study.parameters import Value
from zenith_tune.study.precision import relative_error
from zenith_tune.study.resources import InPlace, Resources
from zenith_tune.study.trial import SAVED_START, START, Outcome, RunKey, Trial
from zenith_tune.study.trial_log import TrialLog, clean_line
from zenith_tune.tuning.config import StudyConfig
from zenith_tune.tuning.watch import EarlyEnd, SilenceWatch, TrialWatch

_FULL_DISK_BYTES = 64 * 1024
_FULL_DISK = "full_disk"
"""Why the log of a run was put aside."""
_CANNOT_BE_JUDGED = (FailureKind.METRIC, FailureKind.DISK_FULL)
_NOT_THE_COMMANDS_FAULT = {
    End.LOST: (Outcome.ERROR, FailureKind.LOST),
    # Cancelled, so that a study that is resumed runs it again.
    End.REVOKED: (Outcome.CANCELLED, FailureKind.REVOKED),
}

FEW_CHARACTERS = 200
"""The most characters of a log that has a warning or two and no measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRequest:
    """One trial to run, and what to do while it runs."""

    trial: Trial
    """The trial as it is recorded at its start."""
    command: str
    launched: str | None = None
    """The command with more output than the user's own asks for; None: the command itself."""
    files: Mapping[str, str] = field(default_factory=dict)
    stakes: Callable[[], Stakes] = Stakes
    """What depends on its value, as it is by now."""
    resources: Resources = field(default_factory=Resources)
    in_place: InPlace | None = None
    """How a process that runs already may measure it; None: by a start of its own."""
    on_state: OnState = nobody_listens
    on_progress: Callable[[Progress, Judgement | None], None] = lambda progress, judgement: None
    is_cancelled: Callable[[], bool] = lambda: False
    limit_s: Callable[[], float | None] = lambda: None
    """The limit as it is by now: it shrinks as better trials end."""
    silence: SilenceWatch | None = None
    """Ends the trial where it prints nothing for too long."""


class TrialExecution:
    """The way from a request to a finished Trial."""

    def __init__(self, runner: Runner, config: StudyConfig, patience: RetryPolicy) -> None:
        self._runner, self._patience = runner, patience
        self._evaluator, self._early_stop, self._preset = config.evaluator, config.early_stop, config.preset
        self._secrets, self._repeats = config.secrets, config.options.repeats
        self._working_folder = config.working_folder
        self._start_s = 0.0
        """What the last start of a process took."""
        self._repeated: dict[RunKey, list[Trial]] = {}
        """Repeats that had finished when the tuner was killed."""

    def run(self, request: TrialRequest, folder: TrialFolder, timeout_s: float | None, job: Job | None = None) -> Trial:
        """Run the command, as often as repeats are asked for; a `job` that an earlier tuner started is waited for."""
        if job is not None:
            return self._close(folder, self._followed(job, request, folder, timeout_s))
        self._patience.call(lambda: self._prepare(request, folder))
        trials = self._repeated.pop(request.trial.key, [])
        for index in range(len(trials) + 1, self._repeats + 1):
            files = folder.run(index, self._repeats)
            job = self._submit(request, files, timeout_s)
            trials.insert(0, self._followed(job, request, files, timeout_s))
            if not trials[0].ok:
                return self._close(folder, trials[0])
        return self._close(folder, _merge(trials))

    def find(self, folder: TrialFolder, timeout_s: float | None, on_state: OnState) -> Job | None:
        """Return the job of a trial that a killed tuner left and that continues; one of several repeats does not."""
        if self._repeats > 1:
            return None
        return self._runner.find(folder.path, timeout_s=timeout_s, on_state=on_state)

    def _submit(self, request: TrialRequest, files: TrialFolder, timeout_s: float | None) -> Job:
        def submit() -> Job:
            make_folder(files.path)
            return self._runner.submit(
                request.launched or request.command,
                files.path,
                request.resources,
                timeout_s=timeout_s,
                on_state=request.on_state,
                in_place=request.in_place if self._repeats == 1 else None,
            )

        return self._patience.call(submit)

    def release(self) -> None:
        """End a process that is kept for further points."""
        self._runner.release()

    def _followed(self, job: Job, request: TrialRequest, files: TrialFolder, timeout_s: float | None) -> Trial:
        """Wait for a job and read what it left; one whose machine failed is started once more, elsewhere."""
        result, early = self._wait(job, request)
        if result.end is not End.LOST:
            trial = self._read(request, files, result, early)
            if not trial.ok and self._was_full(files):
                request.on_state("the disk was full: starts once more")
                files.forget_run(_FULL_DISK)
                return self._followed(self._submit(request, files, timeout_s), request, files, timeout_s)
            if not trial.ok:
                self.release()  # what does not go well is no state to measure anything else in
            if job.has_own_start:
                return trial
            if trial.outcome is not Outcome.ERROR:
                line = f"{self._start_s:.0f} s saved: in a process that ran"
                return replace(trial, extra={**trial.extra, START: line, SAVED_START: self._start_s})
            files.forget_run("in_place")
            return self._followed(self._submit(request, files, timeout_s), request, files, timeout_s)
        request.on_state(f"{result.reason}: starts once more")
        files.forget_run("lost")
        elsewhere = replace(request.resources, avoid=tuple(name for name in result.place.split(",") if name))
        job = self._submit(replace(request, resources=elsewhere), files, timeout_s)
        again, early = self._wait(job, request)
        trial = self._read(request, files, again, early)
        return replace(trial, extra={**trial.extra, "lost": result.reason})

    def _wait(self, job: Job, request: TrialRequest) -> tuple[JobResult, EarlyEnd | None]:
        watch = TrialWatch(
            self._evaluator,
            self._early_stop,
            _metadata(request),
            request.stakes,
            on_progress=request.on_progress,
            is_cancelled=request.is_cancelled,
            # Where jobs wait for their machine first, the limit is the one that they were submitted with.
            limit_s=request.limit_s if self._runner.shares_machine else lambda: None,
            silence=request.silence,
            clock=self._runner.clock,
        )
        try:
            return self._patience.call(lambda: watch.wait(job))
        except BaseException:
            job.cancel()  # whatever went wrong, nothing may be left running
            raise

    def first_log(self, folder: TrialFolder) -> Path:
        """Return where the log of a trial begins."""
        return folder.run(1, self._repeats).log

    def recover(self, request: TrialRequest, folder: TrialFolder) -> Trial | None:
        """Return the trial that a killed tuner left, if it had finished by itself; ends it if it still runs."""
        ends = [(files, self._runner.recover(files.path)) for files in folder.runs()]
        done = [(files, result) for files, result in ends if result is not None]
        readings = [self._read_result(request, files, result) for files, result in done]
        for files, _ in ends:
            self._mask_log(files)
        if any(failure is not None and failure.kind in _CANNOT_BE_JUDGED for _, failure in readings):
            return None
        failed = [trial for trial, _ in readings if not trial.ok]
        if not failed and len(done) != self._repeats:
            self._repeated[request.trial.key] = [trial for trial, _ in readings]
            return None
        return self._close(folder, failed[0] if failed else _merge([trial for trial, _ in readings]))

    def _prepare(self, request: TrialRequest, folder: TrialFolder) -> None:
        try:
            Path.cwd()
        except FileNotFoundError as error:
            problem = f"the working folder {self._working_folder} was deleted"
            raise SystemFaultError(f"{problem}: make it again and continue with --resume") from error
        make_folder(folder.path)
        launched = mask(request.launched or request.command, self._secrets)
        write_atomically(folder.command, f"#!/usr/bin/env bash\n{launched}\n")
        trial = request.trial
        started = {"number": trial.number, "parameters": dict(trial.params), "outcome": "running"}
        write_json(folder.trial, {**started, **trial.key._asdict(), "why": trial.why})
        for name, text in request.files.items():
            path = folder.path / name
            if not path.resolve().is_relative_to(folder.path.resolve()):
                raise UsageError(f"a preset's files belong into the trial's folder, but got {name!r}")
            make_folder(path.parent)
            write_atomically(path, text, is_private=True)  # the user's own, which it is made of, may hold a secret

    def _read(self, request: TrialRequest, files: TrialFolder, result: JobResult, early: EarlyEnd | None) -> Trial:
        try:  # by what the program printed; what is kept of that is masked
            return self._patience.call(lambda: self._read_result(request, files, result, early))[0]
        finally:
            self._patience.call(lambda: self._mask_log(files))

    def _was_full(self, files: TrialFolder) -> bool:
        """Tell whether a trial failed on a full disk, which has space again by now; it is waited for once."""
        if not _is_full(files):
            return False
        if files.log_aside(_FULL_DISK).exists():
            raise disk_full(files.path)

        def wait() -> None:
            if _is_full(files):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(files.path))

        self._patience.call(wait)
        return True

    def _read_result(
        self, request: TrialRequest, files: TrialFolder, result: JobResult, early: EarlyEnd | None = None
    ) -> tuple[Trial, Failure | None]:
        if result.end is End.CANCELLED:
            return self._trial(request, files, result, Outcome.CANCELLED, cause="interrupted"), None
        if result.end in _NOT_THE_COMMANDS_FAULT:
            outcome, kind = _NOT_THE_COMMANDS_FAULT[result.end]
            cause = result.reason or str(result.end)
            return self._trial(request, files, result, outcome, cause=cause, failure=str(kind)), None
        text = TrialLog(files.log).text() if early is None else early.log
        exit_code = result.exit_code if early is None else 0
        silent = result.reason if result.end is End.SILENT else ""
        failure = classify(text, exit_code, timed_out=result.end is End.TIMED_OUT, silent=silent)
        measured = self._measure(text, request, result) if failure is None else failure
        if isinstance(measured, Failure):
            details = {"cause": measured.message, "failure": str(measured.kind)}
            return self._trial(request, files, result, measured.outcome, **details), measured
        fields = {name: getattr(measured, name) for name in measured.__slots__}
        reason = early.reason if early is not None else None
        if seconds := start_seconds(text):
            self._start_s = sum(seconds.values())
            fields["extra"] = {**measured.extra, START: start_line(seconds)}
        return self._trial(request, files, result, Outcome.OK, early=reason, **fields), None

    def _measure(self, text: str, request: TrialRequest, result: JobResult) -> Measurement | Failure:
        metadata = {**_metadata(request), "duration": result.duration_s}
        try:
            measured = _checked(self._evaluator.measure(text, metadata))
        except OtherSettingsError as error:
            return hidden_failure(text, has_value=False) or _failed(FailureKind.NO_EFFECT, str(error))
        except ValueError as error:
            message = f"{error}{_written_elsewhere(text, request)}"
            return hidden_failure(text, has_value=False) or _failed(FailureKind.METRIC, message)
        except Exception as error:  # an evaluator is a plug-in: its faults are the trial's, not the study's
            raised = f"{type(error).__name__}: {error}"
            return _failed(FailureKind.METRIC, f"evaluator {type(self._evaluator).__name__} raised {raised}")
        if (failure := hidden_failure(text, has_value=True)) is not None:
            return failure
        params = request.trial.params
        difference = disagreement(text, self._preset.logged_as(params) if params else {})
        return measured if difference is None else _failed(FailureKind.NO_EFFECT, difference)

    def _mask_log(self, files: TrialFolder) -> None:
        try:
            mask_file(files.log, self._secrets)
        except PermissionError:
            with contextlib.suppress(OSError):  # a trial may have changed the rights of its own log
                files.log.chmod(0o600)
                mask_file(files.log, self._secrets)

    def _trial(
        self, request: TrialRequest, files: TrialFolder, result: JobResult, outcome: Outcome, **fields: Any
    ) -> Trial:
        place = {"place": result.place} if result.place else {}
        extra = {**fields.get("extra", {}), **result.usage, **place}
        shown = {"command": request.command, **{name: each for name, each in fields.items() if isinstance(each, str)}}
        return replace(
            request.trial,
            outcome=outcome,
            folder=files.path,
            duration_s=result.duration_s,
            **{**fields, **self._masked(shown), "extra": self._masked(extra)},
        )

    def _masked(self, texts: Mapping[str, Any]) -> dict[str, Any]:
        return {name: mask(each, self._secrets) if isinstance(each, str) else each for name, each in texts.items()}

    def _close(self, folder: TrialFolder, trial: Trial) -> Trial:
        trial = replace(trial, folder=folder.path)

        def write() -> None:
            try:
                make_folder(folder.path)
                write_json(folder.trial, {**trial_as_json(trial), "identity": trial.identity})
            except OSError as error:
                # A trial may do anything to its own folder; the record has all that this file would hold.
                if is_system_fault(error):
                    raise

        self._patience.call(write)
        return trial


def _failed(kind: FailureKind, message: str) -> Failure:
    return Failure(outcome=Outcome.ERROR, kind=kind, message=clean_line(message))


def _written_elsewhere(text: str, request: TrialRequest) -> str:
    """Say where the output of a command went whose log has next to nothing, if the command itself says so."""
    is_empty = len(text.strip()) <= FEW_CHARACTERS
    target = ParsedCommand.of(request.command).output_file if is_empty else None
    return f": your command writes its output to {target}; leave that out" if target is not None else ""


def _metadata(request: TrialRequest) -> dict[str, Any]:
    return {"trial_id": request.trial.number, "command": request.command, "parameters": dict(request.trial.params)}


def _checked(measured: Measurement) -> Measurement:
    """Return what an evaluator measured, if the record can hold it: plain and finite numbers."""
    value = float(measured.value)
    if not math.isfinite(value):
        raise ValueError(f"the value is {value}")
    measured = replace(measured, value=value)
    json.dumps({name: getattr(measured, name) for name in measured.__slots__}, allow_nan=False)
    return measured


def _is_full(files: TrialFolder) -> bool:
    try:
        disk = os.statvfs(files.path)
    except OSError:  # the trial removed its own folder
        return False
    return disk.f_bavail * disk.f_frsize < _FULL_DISK_BYTES


def _merge(trials: list[Trial]) -> Trial:
    """Make one trial of several runs of the same command: the median, and the spread between the runs."""
    if len(trials) == 1:
        return trials[0]
    values = [trial.value for trial in trials if trial.value is not None]
    middle = statistics.median(values)
    steps = [trial.step_s for trial in trials if trial.step_s is not None]
    extra: dict[str, Value] = dict(trials[0].extra)
    for name in extra:
        numbers = [value for trial in trials if isinstance(value := trial.extra.get(name), int | float)]
        if len(numbers) == len(trials):
            extra[name] = statistics.median(numbers)
    return replace(
        trials[0],
        value=middle,
        spread=(max(values) - min(values)) / 2 / abs(middle) if middle else None,
        error=relative_error(values) if min(values) > 0 else None,
        step_s=statistics.median(steps) if steps else None,
        num_samples=sum(trial.num_samples or 1 for trial in trials),
        peak_memory_bytes=max(trial.peak_memory_bytes or 0 for trial in trials) or None,
        num_runs=len(trials),
        early=next((trial.early for trial in trials if trial.early is not None), None),
        duration_s=statistics.fmean(trial.duration_s or 0.0 for trial in trials),
        extra=extra,
    )
