"""One study while it is tuned: holds its lock, its record and its folder, and runs its trials."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from zenith_tune.errors import CommandError, OwnCommandFails, StudyError, SystemFaultError, TrialExhausted, UsageError
from zenith_tune.evaluators.early_stop import MIN_SAMPLES, Stakes, study_drift
from zenith_tune.evaluators.failures.failures import (
    FailureKind,
    ending_lines,
    is_fault_of_the_command,
    refuse_hopeless,
    reported_capacity,
)
from zenith_tune.evaluators.failures.no_effect import refuse_without_effect
from zenith_tune.hooks.injection import with_hook
from zenith_tune.presets.shared.trial_hook import watched
from zenith_tune.record.control import StudyControl
from zenith_tune.record.export import export
from zenith_tune.record.folder import StudyLock
from zenith_tune.record.kept_launches import KeptLaunches
from zenith_tune.record.record import StudyRecord
from zenith_tune.record.search import StudySearch
from zenith_tune.record.server.other_tuners import OtherTuners, TakenOver
from zenith_tune.record.server.url import database_path, shown
from zenith_tune.runners.base import Job, Runner
from zenith_tune.runners.launch.left_files import State, state_of, without_open, written_files
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.shell.secrets import mask, mask_environment
from zenith_tune.strategies.base import TuningStrategy, await_first
from zenith_tune.study.faults import clear_faults, system_patience
from zenith_tune.study.files import TrialFolder, make_folder, write_atomically, write_json
from zenith_tune.study.parameters import Params
from zenith_tune.study.study import EndReason, Study, StudyEnding
from zenith_tune.study.trial import YOUR_COMMAND, Findings, Outcome, RunKey, Trial
from zenith_tune.study.trial_log import TrialLog
from zenith_tune.study.verdict import Verdict, verdict_of
from zenith_tune.tuning.config import TRIAL_FOLDER, StudyConfig
from zenith_tune.tuning.events import StudyListener, StudyNotifier, StudyPlan
from zenith_tune.tuning.execution import TrialExecution, TrialRequest
from zenith_tune.tuning.interruption import Interruption
from zenith_tune.tuning.orphans import OrphanedTrials
from zenith_tune.tuning.trial_limits import TrialLimits
from zenith_tune.tuning.watch import SilenceLimit, SilenceWatch

_PAUSE_S = 0.5
NUM_SHOWN_LINES = 20
"""Lines shown of the log of the user's own command, where it fails."""
_FINISHED = (Outcome.OK, Outcome.OOM, Outcome.TIMEOUT, Outcome.ERROR)


class StudySession:
    """The trials of one study and its record, from the lock to the last export."""

    def __init__(
        self, config: StudyConfig, runner: Runner, listener: Callable[[], StudyListener], interruption: Interruption
    ) -> None:
        self.config = config
        place = config.place
        self.study = Study(config.evaluator.direction)
        self.study.limit_memory(config.memory.bytes_of(config.first_capacity_bytes))
        self._launches = KeptLaunches(config.machine_name)
        self.study.earlier_launches = self._launches.read()
        self.recorded: dict[RunKey, Trial] = {}
        """The finished trials of earlier runs of this study."""
        self._loaded: list[Trial] = []
        """All of them, those of the user's own command too."""
        self._preset = config.preset
        self._ask_preset()
        self._interruption = interruption
        self._notifier = StudyNotifier(listener)
        self._patience = system_patience(place.folder.path, self._notifier.noted, interruption.check)
        self._execution = TrialExecution(runner, config, self._patience)
        self._control = StudyControl(place.folder.control)
        database = database_path(place.database_url)
        self._lock = StudyLock(database, place.study_name) if database is not None else None
        self._record: StudyRecord | None = None
        self._search = StudySearch()
        self._limits = TrialLimits(config, self.study)
        self._silence = SilenceLimit(config.timeouts.fixed_s)
        self._orphans = OrphanedTrials(self._execution, self._notifier, place.folder.path, config.timeouts.fixed_s)
        self.others: OtherTuners | None = None
        """Who else tunes this study; None where a file lock keeps everybody off."""

    def open(self) -> None:
        """Take the study: create it, or continue what is there and deal with what a killed tuner left."""
        folder = self.config.place.folder
        with clear_faults(folder.path):
            folder.create()
            if self._lock is not None:
                self._lock.acquire()
                self._control.forget()
            url, name = self.config.place.database_url, self.config.place.study_name
            if (database := database_path(url)) is not None and not database.exists():
                database.touch(mode=0o600)
            record = self._record = StudyRecord(url, name, folder, self._notifier.noted)
            with record.opening():
                is_new = not record.exists()
                if is_new:
                    folder.refuse_foreign(shown(url))
                    if self.config.options.resume:
                        self._notifier.noted(f"there is no study {name!r} to resume: it begins now")
                    record.create(self.config.header, self.study.direction)
                elif self.config.options.resume:
                    record.reopen(self.config.header)
                    self._keep_limits(record.search())
                else:
                    problem = f"study {name!r} is in {shown(url)} already"
                    raise StudyError(problem, hint="continue it by --resume, or choose another --study-name")
            if record.claims is None:
                record.hold()
            self._take_up(record, is_new=is_new)

    def _take_up(self, record: StudyRecord, *, is_new: bool) -> None:
        """Deal with what killed tuners left, load what is finished, and join those who tune the study too."""
        if record.claims is None:
            for left in [] if is_new else record.unfinished():
                self._orphans.recover(left, record)
            self._load([] if is_new else record.finished(), record)
            return
        self.others = OtherTuners(
            record,
            take_in=lambda trial: self._notifier.recalled(trial, self.label(trial), self.study),
            recover=lambda left: self._orphans.recover(left, record),
            check=self._interruption.check,
        )
        self.others.recover_left()
        finished = record.finished()
        self._load(finished, record)
        self.others.begin(trial.number for trial in finished)

    def _keep_limits(self, search: StudySearch) -> None:
        """Take the limits that the study was begun with where no others are stated, and the time that it took."""
        self._limits.earlier_s = search.elapsed_s
        config = self.config.with_limits(search.budget, search.memory)
        if (config.budget, config.memory) == (self.config.budget, self.config.memory):
            return
        self.config = self._limits.config = config
        self.study.limit_memory(config.memory.bytes_of(config.first_capacity_bytes))
        options = ", ".join([*config.budget.options(), *config.memory.options()])
        self._notifier.noted(f"the study keeps the limits that it was begun with: {options}")

    @property
    def elapsed_s(self) -> float:
        """The time that all runs of the study took by now."""
        return self._limits.elapsed_s

    def close(self) -> None:
        """Let go of the study."""
        try:
            self._execution.release()
            if self._record is not None:
                self._orphans.end(self._record)
        finally:
            if self.others is not None:
                self.others.close()
            if self._record is not None:
                self._record.close()
            if self._lock is not None:
                self._lock.release()

    def run_baseline(self, *, again: bool = False) -> Trial:
        """Run the user's own command, unless an earlier run of the study did; `again` at the end, to confirm a gain."""
        known = self.study.baseline
        if known is not None and not again:
            self._refuse_failed_command(known)
            return known
        last = max((trial.number for trial in self.study.runs if trial.is_baseline), default=None)
        run = RunKey(self.config.masked_command, is_baseline=True, rerun_of=last if again else None)
        why = "your own command again, to confirm the gain" if again else ""
        trial = self._elsewhere(run)
        if trial is None:
            before = None if again else self._working_files()
            try:
                trial = self._run({}, self._preset.baseline_command(self.config.command), run, why)
            except TakenOver:
                return self.run_baseline(again=again)
            if before is not None:
                self._note_written(before)
        if trial.failure == FailureKind.METRIC and not again:
            raise UsageError(f"your own command ran to its end, but {trial.cause} (see {trial.folder})")
        if not again:
            self._refuse_failed_command(trial)
        return trial

    def _working_files(self) -> State | None:
        place, here = self.config.place, self.config.working_folder
        database = database_path(place.database_url)
        own = [place.folder.path.absolute(), place.folder.path.absolute().parent, *([database] if database else [])]
        return state_of(here, [path.absolute() for path in own if path.absolute() != here])

    def _note_written(self, before: State) -> None:
        """Name the files that the user's own command has written: each trial writes them too."""
        after = self._working_files()
        if after is None or after == before:
            return
        # The user may keep what we print ourselves, as by `| tee tune.log`.
        if names := written_files(before, without_open(after, self.config.working_folder)):
            apart = "files below $ZENITHTUNE_TRIAL_FOLDER or {trial_folder} are kept apart"
            self._notifier.noted(f"your own command writes {names}, and so does each trial: {apart}")

    def learn(self) -> list[str]:
        """Let the preset learn from the log of the user's own command, and return what it has learnt."""
        own = self.study.baseline
        log = TrialLog(self._execution.first_log(TrialFolder(own.folder))).text() if own and own.folder else ""
        notes = self._preset.read_baseline(log)
        if notes:
            self._ask_preset()
            if own is not None:
                self._let_preset_learn(own)
        return notes

    def _ask_preset(self) -> None:
        self._space = {**self._preset.lever_space(), **self._preset.get_search_space()}
        with contextlib.suppress(UsageError):  # a command with placeholders may stand for no point
            self.study.own_params = self._preset.own_point(self.config.masked_command)

    def _refuse_failed_command(self, trial: Trial) -> None:
        """Stop where the user's own command does not run, and show how it ended: no layout changes that."""
        if not is_fault_of_the_command(trial):
            return
        log_path = self._execution.first_log(TrialFolder(trial.folder or self.config.place.folder.path))
        lines = [mask(line, self.config.secrets) for line in ending_lines(log_path, trial.cause, NUM_SHOWN_LINES)]
        self._notifier.noted("\n  ".join([f"the end of {log_path}:", *lines]))
        hint = "fix it, or search without it by --no-baseline"
        raise OwnCommandFails(f"your own command fails: {trial.cause}; {hint}")

    def _elsewhere(self, run: RunKey) -> Trial | None:
        """Return a run as another tuner made it; None where this one has to."""
        if self.others is None or self.others.holds(run):
            return None
        answer = self.others.ask(run)
        if answer is None:
            return None
        if not answer.done():
            what = "your own command" if run.is_baseline else "what comes next"
            self._notifier.noted(f"another tuner runs {what}: waiting for it")
        await_first([answer])
        return answer.result()

    def run_point(self, params: Params, identity: str, why: str = "", *, rerun_of: int | None = None) -> Trial:
        """Run a point that was never run, or repeat a trial to confirm it."""
        run = RunKey(identity, rerun_of=rerun_of)
        trial = self._elsewhere(run) or self._run(params, self.config.render(params), run, why)
        refuse_hopeless(self.study)
        refuse_without_effect(self.study, self._preset.decisive(), self._preset.layout, self._preset.lever_space())
        return trial

    def begin_search(self, plan: StudyPlan) -> None:
        """Write by which strategy the study is searched."""
        record = self._require_record()
        self._limits.num_slots = plan.num_slots
        earlier = record.search()
        if earlier.begun_s:  # what it has shown itself is in its record
            self.study.earlier_launches = earlier.launches
        self._search = replace(
            earlier,
            strategy=plan.strategy,
            num_slots=plan.num_slots,
            cluster=self.config.cluster_name,
            begun_s=time.time(),
            memory_limit_bytes=self.study.memory_limit_bytes,
            budget=self.config.budget,
            memory=self.config.memory,
            launches=self.study.earlier_launches,
        )
        record.keep_search(self._search)

    @property
    def was_done(self) -> bool:
        """Whether an earlier run of the study has ended by itself."""
        return self._search.is_done

    def bound(self, max_trials: int | None) -> None:
        """Take in how many trials there are at most, now that the user's own command has shown what is searched."""
        self.study.max_trials = max_trials
        self._search = replace(self._search, max_trials=max_trials)
        self._require_record().keep_search(self._search)

    def search_by(self, name: str, strategy: TuningStrategy) -> None:
        """Continue by another strategy."""
        self.config = replace(self.config, strategy_name=name, strategy=strategy)
        self._search = replace(self._search, strategy=name)

    def end_search(self, ending: StudyEnding, findings: Findings | None, verdict: Verdict) -> None:
        """Write why the study stops, what its strategy has found, and what it comes to."""
        self._search = replace(self._search, memory_limit_bytes=self.study.memory_limit_bytes, elapsed_s=self.elapsed_s)
        why, is_done = mask(ending.why, self.config.secrets), ending.reason is EndReason.DONE
        self._search = self._search.ended(time.time(), why, findings, verdict, is_done=is_done)
        # What keeps the database from being written is reported elsewhere; study.json has it too.
        with contextlib.suppress(StudyError, SystemFaultError):
            self._require_record().keep_search(self._search)

    def keep_launches(self) -> None:
        """Keep for later studies on the machine what the reruns have shown of its noise."""
        self._launches.add(self.study.rerun_ratios(besides=self._loaded))

    def export(self) -> None:
        """Write CSV, JSON and the best command."""
        self._patience.call(self._export)

    def _export(self) -> None:
        self.config.place.folder.make()  # a trial may have removed it
        if self.others is not None:
            self.others.catch_up_if_possible()
        export(self.study, self.config.header, self.config.place.folder, self.best_command(), self._search)
        if (params := self._best_params()) is not None:
            for name, text in self._preset.result_files(params).items():
                path = self.config.place.folder.path / name
                make_folder(path.parent)
                write_atomically(path, text, is_private=True)

    def best_command(self) -> str | None:
        """Return the command of the fastest run, or the one that needs nothing but what is left for it."""
        fastest, params, own = self.study.fastest, self._best_params(), self.config.masked_command
        if fastest is None:
            return None
        made = None if params is None else self._preset.result_command(own, params, self.config.place.folder.path)
        # A run of the user's own command may have had more to print than the command itself asks for.
        return made or (own if fastest.is_baseline and not self._preset.asked_tuning(own) else fastest.command)

    def _best_params(self) -> Params | None:
        """Return the point of the fastest run, which may be the user's own."""
        fastest = self.study.fastest
        params = (fastest.params or self._preset.own_point(self.config.masked_command)) if fastest else None
        return dict(params) if params else None

    def dump_environment(self) -> None:
        write_json(self.config.place.folder.environment, mask_environment(os.environ))

    def verdict(self) -> Verdict:
        """Return what the study comes to."""
        budget, capacity_bytes = self.config.priced_budget, self._capacity_bytes()
        return verdict_of(self.study, budget, num_gpus=self.config.num_gpus, capacity_bytes=capacity_bytes)

    def limit_memory(self) -> None:
        """Choose the best among what leaves room, by all that is known of the GPUs at the end of the search."""
        self.study.limit_memory(self.config.memory.bytes_of(self._capacity_bytes()))

    def _capacity_bytes(self) -> float | None:
        """Return the memory of a GPU: the cluster's, or what a run that was out of it said."""
        return self.config.capacity_bytes or reported_capacity(trial.cause for trial in self.study.trials)

    def _run(self, params: Params, command: str, run: RunKey, why: str) -> Trial:
        self._interruption.check()
        self._wait_while_paused()
        keeps = run.rerun_of is None
        if not (run.is_baseline and keeps):
            self._limits.check_number()
        self._limits.check(keeps=keeps)
        record = self._require_record()
        started, job = self._orphans.pop(run)
        if started is None:
            started = Trial(params=params, outcome=Outcome.CANCELLED, why=why, **run._asdict())
            label = "" if run.is_baseline else self.label(started)
            number = record.start(params, self._space, run, why=why, label=label)
            if self.others is not None:
                self.others.own(number)
            started = replace(started, number=number, folder=self.config.place.folder.trial(number).path)
        folder = TrialFolder(started.folder or self.config.place.folder.path)
        limit_s = self._limits.limit_s(is_baseline=run.is_baseline, keeps=keeps)
        label = self.label(started)
        self._notifier.started(started, label, self._execution.first_log(folder), limit_s)
        with self._limits.counting(started.number):
            trial = self._in_one_unit(self._attempt(started, command, folder, limit_s, job))
        trial = self._limits.without_cut_off(trial, keeps=keeps)
        self._finish(record, trial, label)
        if trial.was_cut_off:
            self.study.cut_off_s += trial.duration_s or 0.0
            self._interruption.check()
            self._limits.check(keeps=keeps)
            raise TrialExhausted("the study is ending")
        return trial

    def _attempt(
        self, started: Trial, command: str, folder: TrialFolder, limit_s: float | None, job: Job | None
    ) -> Trial:
        """Run a trial that is in the record; whatever goes wrong, it does not stay there as running."""
        name = YOUR_COMMAND if started.is_baseline else f"trial {started.number}"
        silence = SilenceWatch(self._silence, lambda line: self._notifier.noted(f"{name}: {line}"))
        try:
            begun, files = self._begun(command, started)
            command, begun = (fill_placeholders(each, {TRIAL_FOLDER: str(folder.path)})[0] for each in (command, begun))
            request = TrialRequest(
                trial=started,
                command=command,
                launched=self._preset.trial_command(begun),
                files=files,
                stakes=self._stakes(started),
                resources=self.config.resources,
                in_place=self._preset.in_place(started.params) if started.params and not started.is_rerun else None,
                on_state=lambda state: self._notifier.state(started.number, state),
                on_progress=lambda progress, known: self._notifier.progress(started.number, progress, known),
                is_cancelled=lambda: self._control.is_cancelled(started.number),
                limit_s=lambda: None if started.is_baseline else self.config.timeouts.limit_s(self.study),
                silence=silence,
            )
            with clear_faults(folder.path):
                trial = self._execution.run(request, folder, limit_s, job)
                if trial.ok:
                    self._silence.observe(silence.longest_s)
                return trial
        except OSError as error:
            # It cannot be started, for one because its command is too long: that is the trial's failure.
            cause = f"it could not be started: {error}"
            return replace(started, outcome=Outcome.ERROR, cause=cause, failure=str(FailureKind.CRASH))
        except SystemFaultError:
            raise  # nothing more can be written; resuming deals with it
        except BaseException as error:
            self._require_record().finish(replace(started, cause=f"{type(error).__name__}: {error}"))
            raise

    def _stakes(self, started: Trial) -> Callable[[], Stakes]:
        """Return what depends on the value of a run; what is predicted is asked for while the run starts."""
        study, first = self.study, self.study.first_run(started)
        if started.is_rerun:
            best = study.best if started.is_baseline else study.baseline
        else:
            best = None if started.is_baseline else study.fastest
        stakes = Stakes(
            best=best,
            training=self.config.budget.training,
            drift=study_drift(study.runs),
            launch=study.launch_noise,
            max_samples=None if first is None else max(first.num_samples or 0, MIN_SAMPLES),
        )
        is_first = started.is_baseline and not started.is_rerun
        strategy = self.config.strategy
        return functools.cache(lambda: replace(stakes, predicted=strategy.expected_best()) if is_first else stakes)

    def _begun(self, command: str, started: Trial) -> tuple[str, Mapping[str, str]]:
        """Return a trial's command and files, with steps of fewer micro-batches at its start where that is exact."""
        files, short = self._files(started), self.config.short_steps(started.params)
        if short is None:
            return command, files
        try:
            return watched(command), with_hook(files, "short_steps", asdict(short))
        except CommandError:  # it takes no variable
            return command, files

    def _files(self, trial: Trial) -> Mapping[str, str]:
        if not trial.params:
            return self._preset.baseline_files()
        confirming = self._preset.confirming(trial.params) if trial.is_rerun else None
        return self._preset.files(trial.params) if confirming is None else confirming.files

    def _wait_while_paused(self) -> None:
        """Start no trial while somebody asked for a pause; those that run continue."""
        if not self._control.is_paused():
            return
        self._execution.release()
        self._notifier.noted("paused: no further trial starts until it is continued")
        while self._control.is_paused():
            self._interruption.check()
            time.sleep(_PAUSE_S)
        self._notifier.noted("continued")

    def _in_one_unit(self, trial: Trial) -> Trial:
        """Fail a trial whose value cannot be compared, because its log led to another unit than the first one's."""
        first = next((each for each in (self.study.baseline, *self.study.trials) if each is not None and each.ok), None)
        if not trial.ok or first is None or first.unit in ("", trial.unit):
            return trial
        cause = f"its value is in {trial.unit or 'no unit'}, but those before it are in {first.unit or 'no unit'}"
        return replace(trial, outcome=Outcome.ERROR, value=None, cause=cause, failure=str(FailureKind.METRIC))

    def _finish(self, record: StudyRecord, trial: Trial, label: str) -> None:
        if not record.finish(trial):
            problem = f"trial {trial.number} was taken over by another tuner, as this one was silent for too long"
            self._notifier.noted(f"{problem}: what it measured is left out")
            raise TakenOver(problem)
        if self.config.budget.max_hours is not None:  # one that is killed afterwards has taken so long at least
            record.keep_search(replace(self._search, elapsed_s=self.elapsed_s))
        self._let_preset_learn(trial)
        self._notifier.finished(trial, label, self.study)
        if trial.outcome is Outcome.OOM and self.config.first_capacity_bytes is None:
            capacity = reported_capacity(trial.cause for trial in self.study.trials)
            self.study.limit_memory(self.config.memory.bytes_of(capacity))

    def label(self, trial: Trial) -> str:
        return (YOUR_COMMAND if trial.is_baseline else self._preset.label(trial.params)) + trial.mark

    def _load(self, finished: list[Trial], record: StudyRecord) -> None:
        self.study.cut_off_s = sum(trial.duration_s or 0.0 for trial in finished if trial.outcome not in _FINISHED)
        # Of a run that was tried again, the last time counts.
        last = {trial.key: trial for trial in finished if trial.outcome in _FINISHED}
        for trial in sorted(last.values(), key=lambda trial: trial.number):
            if self.config.options.retry_failed and trial.outcome is Outcome.ERROR:
                record.free_failed(trial)
                continue
            self.study.add(trial)
            self._let_preset_learn(trial)
            if not trial.is_baseline:
                self.recorded[trial.key] = trial
        self._loaded = self.study.runs
        self.study.allow_reruns()

    def _let_preset_learn(self, trial: Trial) -> None:
        # The user's own command is a run of the point that it stands for.
        params = self.study.own_params if trial.is_baseline else trial.params
        if params:
            self._preset.observe(replace(trial, params=params))

    def _require_record(self) -> StudyRecord:
        if self._record is None:
            raise StudyError("the study is not open")
        return self._record
