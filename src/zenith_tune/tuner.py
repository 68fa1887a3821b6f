"""PresetTuner: the one loop that joins preset, strategy, runner, evaluator and record."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zenith_tune.errors import StudyLimitReached, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.choice import choose_evaluator
from zenith_tune.evaluators.early_stop import EarlyStop
from zenith_tune.presets.base import TuningPreset, recognised_preset
from zenith_tune.record.server.url import shown
from zenith_tune.record.view import StudyHeader
from zenith_tune.registry import PresetRegistry, StrategyRegistry, construct, typed
from zenith_tune.runners.base import Runner, check_runner, make_runner
from zenith_tune.shell import CommandLine
from zenith_tune.shell.placeholders import fill_placeholders, misspelt_placeholder, placeholder_names
from zenith_tune.shell.secrets import find_secrets, mask
from zenith_tune.strategies.base import TunedJob, TuningStrategy
from zenith_tune.study.parameters import Params
from zenith_tune.study.study import Study
from zenith_tune.tuning.confirmation import IsolatedRerun
from zenith_tune.tuning.events import FIRST_STATE, StudyEnd, StudyListener, StudyPlan
from zenith_tune.tuning.execution import TrialExecution
from zenith_tune.tuning.interruption import Interruption, why_stopped
from zenith_tune.tuning.place import StudyPlace, check_text
from zenith_tune.tuning.scheduler import Limits, TrialScheduler
from zenith_tune.tuning.session import StudySession
from zenith_tune.tuning.watch import Timeouts

TRIAL_FOLDER = "trial_folder"


def own_placeholders(preset: TuningPreset) -> set[str]:
    """Return the names that a command may hold in braces."""
    return {*preset.placeholder_names(), TRIAL_FOLDER}


def check_command(preset: TuningPreset, command: str, folder: Path) -> None:
    """Refuse a command that holds a placeholder nobody fills, or that options find no place in."""
    first = {name: parameter.grid(1)[0] for name, parameter in preset.get_search_space().items()}
    if (misspelt := misspelt_placeholder(command, own_placeholders(preset))) is not None:
        name, meant = misspelt
        raise UsageError(f"unknown placeholder {{{name}}}; did you mean {{{meant}}}?")
    fill_placeholders(preset.apply_parameters(command, first), {TRIAL_FOLDER: str(folder)})


def check_program(line: CommandLine) -> None:
    """Refuse a command whose program is not there."""
    program = line.program
    if program is not None and "{" not in program and shutil.which(program) is None:
        raise UsageError(f"the program {program!r} of the training command does not exist or is not executable")


_EARLY_STOP = EarlyStop()


class PresetTuner:
    """Find the fastest way to run a training command.

    tuner = PresetTuner("bash train.sh", preset="megatron", tune_args={"n_gpus": "8", "gbs": "16"})
    best_value, best_params = tuner.optimize(n_trials=30)
    """

    def __init__(
        self,
        command: str,
        preset: str | TuningPreset | None = None,
        strategy: str | TuningStrategy | None = None,
        evaluator: str | TuningEvaluator | None = None,
        output_dir: str | Path | None = None,
        study_name: str | None = None,
        db_path: str | Path | None = None,
        dump_env: bool = False,
        tune_args: Mapping[str, Any] | None = None,
        *,
        strategy_args: Mapping[str, Any] | None = None,
        evaluator_args: Mapping[str, Any] | None = None,
        runner: str | Runner = "local",
        runner_args: Mapping[str, Any] | None = None,
        parallel: int | None = 1,
        needs: Mapping[str, Any] | None = None,
        timeouts: Timeouts | None = None,
        limits: Limits | None = None,
        repeats: int = 1,
        baseline: bool = True,
        resume: bool = False,
        retry_failed: bool = False,
        listener: StudyListener | None = None,
        early_stop: EarlyStop | None = _EARLY_STOP,
        objective: str | None = None,
    ) -> None:
        if isinstance(runner, str):
            check_runner(runner, runner_args)  # a mistake is told now, not when the study begins
        check_text(command, "the training command")
        self.command = command
        self._line = CommandLine(command)
        self._tune_args = dict(tune_args or {})
        self._preset_args: dict[str, Any] = {}
        self.preset_name, self.preset = self._make_preset(preset)
        self.preset.bind(command)
        self.strategy_name, self.strategy = self._make_strategy(strategy, strategy_args)
        self.evaluator = choose_evaluator(
            evaluator, evaluator_args, objective, own=self.preset.evaluator, defaults=self._tune_args
        )
        self._runner, self._runner_args, self._parallel = runner, runner_args, parallel
        needed = self.preset.resources(command).for_gpus(self._preset_args.get("n_gpus"))
        self.resources = needed.given(**(needs or {}))
        # A framework prints its configuration, and whatever that holds, into the log.
        texts = [command, *self.preset.baseline_files().values()]
        self.secrets = list(dict.fromkeys(secret for text in texts for secret in find_secrets(text)))
        self._study: Study | None = None
        self._runner_notes: list[str] = []
        self._num_slots, self._first_state = 1, FIRST_STATE
        self._listener: StudyListener | Callable[[], StudyListener] | None = listener
        self._timeouts, self._limits = timeouts or Timeouts(), limits or Limits()
        self._dump_env = dump_env
        self._baseline = baseline
        self._repeats = repeats
        self._early_stop = early_stop if self.evaluator.shows_progress else None
        if retry_failed and not resume:
            raise UsageError("--retry-failed goes with --resume", hint="give both")
        place = StudyPlace.find(output_dir, study_name, db_path, resume=resume, stem=self.preset_name)
        self._place = replace(place, retry_failed=retry_failed)
        check_command(self.preset, command, self._place.folder.path)

    def optimize(self, n_trials: int | None = None) -> tuple[float | None, Params | None]:
        """Run the study; returns the best value and its parameters, or (None, None) if no trial went well."""
        limits = self.budget(n_trials)
        self.check_program()
        runner = self._runner if isinstance(self._runner, Runner) else make_runner(self._runner, self._runner_args)
        try:
            return self._optimize(limits, runner)
        finally:
            if runner is not self._runner:  # one that was given belongs to whoever gave it
                runner.close()

    def _optimize(self, limits: Limits, runner: Runner) -> tuple[float | None, Params | None]:
        runner.prepare(self.resources, self._parallel)
        self._runner_notes, self._num_slots = [*runner.notes(), *runner.command_notes(self.command)], runner.num_slots
        self._first_state = FIRST_STATE if runner.shares_machine else "starting"  # there it may have to wait
        self.strategy.prepare(self.tuned_job(runner.num_slots, self._place.folder.path))
        header = StudyHeader(
            preset=self.preset_name,
            args={name: str(value) for name, value in sorted(self._preset_args.items())},
            command=mask(self.command, self.secrets),
            evaluator=self.evaluator.describe(),
        )
        runner.reset()
        interruption = Interruption(runner.interrupt, lambda: runner.num_running > 0)
        session = StudySession(
            self._place,
            header,
            self.evaluator.direction,
            self.preset,
            TrialExecution(runner, self.evaluator, self.secrets, self._repeats, self._early_stop),
            self._timeouts,
            self.secrets,
            lambda: self.listener,  # made when there is something to hear: most mistakes are told before
            interruption,
            self.resources,
        )
        try:
            with interruption:
                session.open()
                # A second call goes on where this one stops.
                self._place = replace(self._place, resume=True, retry_failed=False)
                self._run(session, limits, interruption, runner)
        finally:
            session.close()
        best = session.study.best
        return (best.value, dict(best.params)) if best else (None, None)

    @property
    def listener(self) -> StudyListener:
        """Return who hears of the study; the terminal, where nobody else was named."""
        if not isinstance(self._listener, StudyListener):
            self._listener = (self._listener or _terminal)()
        return self._listener

    @listener.setter
    def listener(self, listener: StudyListener | Callable[[], StudyListener]) -> None:
        self._listener = listener

    def render(self, params: Mapping[str, Any]) -> str:
        """Return the command that a point stands for."""
        return self.preset.apply_parameters(self.command, params)

    def tuned_job(self, num_slots: int = 1, folder: Path | None = None) -> TunedJob:
        """Return what the strategy may know of the job."""
        subject, unplanned = None, f"preset {self.preset_name} knows no layouts"
        try:
            subject = self.preset.subject(self.command) if self.strategy.plans else None
        except UsageError as error:
            unplanned = str(error)
        return TunedJob(
            subject=subject,
            unplanned=unplanned,
            layout=lambda params: self.preset.planned_layout(self.command, params),
            points=self.preset.points,
            own_point=lambda: self.preset.own_point(self.command),
            baseline=lambda: self._study.baseline if self._study is not None else None,
            num_slots=num_slots,
            folder=folder,
            tell=lambda line: self.listener.noted(line),
        )

    def _run(self, session: StudySession, limits: Limits, interruption: Interruption, runner: Runner) -> None:
        evaluation = TrialScheduler(
            preset=self.preset,
            identify=self.identify,
            run_point=lambda params, identity, why: session.run_point(params, self.render(params), identity, why),
            study=session.study,
            listener=self.listener,
            limits=limits,
            recorded=session.recorded,
            num_slots=runner.num_slots,
            check_interrupted=interruption.check,
            others=session.others,
        )
        why = "it failed"
        self._study = session.study
        try:
            plan = self._plan(session, limits)
            session.begin_search(plan)
            self.listener.study_started(plan)
            if self._dump_env:
                session.dump_environment()
            if self.runs_baseline:
                session.run_baseline(self.command)
            why = self._search(evaluation)
            if runner.shares_machine and runner.num_slots > 1:
                for line in IsolatedRerun(session, self.render).run():
                    self.listener.noted(line)
        except BaseException as error:
            why = why_stopped(error) or why
            runner.interrupt()  # nothing that other threads still run is worth waiting for
            raise
        finally:
            try:
                evaluation.close()
            finally:
                self._end(session, why)

    def _search(self, evaluation: TrialScheduler) -> str:
        """Run the strategy to its end, wait for what it submitted, and return what ended it."""
        try:
            self.strategy.optimize(evaluation, self.preset.get_search_space(), self.evaluator.direction)
            why = self.strategy.why_done() or f"strategy {self.strategy_name} came to its end"
        except StudyLimitReached as limit:
            why = str(limit)
        try:
            evaluation.drain()
        except StudyLimitReached as limit:
            why = str(limit)
        return why

    def identify(self, params: Mapping[str, Any]) -> str:
        """Name the run that a point stands for, its command and its files: one name is one run."""
        files = self.preset.files(params)
        digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16] if files else ""
        return mask(self.render(params), self.secrets) + (f" # files {digest}" if digest else "")

    def _end(self, session: StudySession, why: str) -> None:
        from zenith_tune.doctor.diagnosis import study_diagnosis  # loads the planner

        folder, findings = session.place.folder, self.strategy.findings()
        end = StudyEnd(
            study=session.study,
            why=why,
            best_command=session.best_command(),
            csv_path=folder.csv,
            json_path=folder.json,
            trials_path=folder.path / "trials",
            database_url=shown(session.place.database_url),
            best_command_path=folder.best_command,
            study_name=session.place.study_name,
            warnings=self._line.warnings(),
            findings=findings,
            diagnosis=[]
            if why.startswith("interrupted")
            else study_diagnosis(self.preset, self.command, session.study),
        )
        try:
            session.end_search(why, findings)
            session.export()
        finally:
            self.listener.study_ended(end)

    def _plan(self, session: StudySession, limits: Limits) -> StudyPlan:
        bounds = [limits.n_trials, self.strategy.max_trials(self.preset.get_search_space())]
        return StudyPlan(
            study_name=session.place.study_name,
            preset=self.preset_name,
            strategy=self.strategy_name,
            evaluator=self.evaluator.describe(),
            command=mask(self.command, self.secrets),
            n_trials=limits.n_trials,
            max_trials=min((bound for bound in bounds if bound is not None), default=None),
            num_finished=len(session.recorded),
            notes=self.notes(),
            num_slots=self._num_slots,
            first_state=self._first_state,
            labels={trial.number or 0: session.label(trial) for trial in session.recorded.values()},
            study=session.study,
        )

    def notes(self) -> list[str]:
        """Return what the user should know before the first trial."""
        notes = [*self.preset.notes(self.command), *self._line.warnings(), *self._runner_notes]
        if self.secrets:
            notes.append("secrets in the command are masked as *** in every file and in the best command")
        if self._baseline and not self.runs_baseline:
            notes.append("your command holds placeholders, so it cannot run by itself: there is no baseline")
        limits = (self._timeouts.describe(), self._early_stop.describe() if self._early_stop else None)
        return [*notes, *(limit for limit in limits if limit)]

    @property
    def runs_baseline(self) -> bool:
        """Tell whether the user's own command runs first; one that holds placeholders cannot."""
        return self._baseline and not placeholder_names(self.command, own_placeholders(self.preset))

    def budget(self, n_trials: int | None) -> Limits:
        """Return the limits of a study of `n_trials`, or of the strategy's own length."""
        if n_trials is not None and n_trials < 1:
            raise UsageError(f"--n-trials must be at least 1, but got {n_trials}")
        if self.strategy.ends_by_itself:
            return replace(self._limits, n_trials=n_trials, consecutive_prunes=None, consecutive_duplicates=None)
        return replace(self._limits, n_trials=n_trials or self.strategy.default_n_trials)

    def _make_preset(self, preset: str | TuningPreset | None) -> tuple[str, TuningPreset]:
        if isinstance(preset, TuningPreset):
            return type(preset).__name__, preset
        name = preset or recognised_preset(self.command)
        cls = PresetRegistry.get(name)
        # Typed, so that a resumed study may write n_gpus=08 for 8.
        self._preset_args = typed(cls, self._tune_args, f"preset {name}")
        return name, construct(cls, self._preset_args, f"preset {name}")

    def _make_strategy(
        self, strategy: str | TuningStrategy | None, args: Mapping[str, Any] | None
    ) -> tuple[str, TuningStrategy]:
        if isinstance(strategy, str):
            cls = StrategyRegistry.get(strategy)
            return strategy, construct(cls, args or {}, f"strategy {strategy}", defaults=self._tune_args)
        if args:
            raise UsageError("--strategy-args belong to a strategy", hint="name it by --strategy")
        chosen = strategy or self.preset.get_recommended_strategy()
        return StrategyRegistry.name_of(type(chosen)), chosen

    def check_program(self) -> None:
        """Refuse a command whose program is not there; a dry run does without it."""
        check_program(self._line)


def _terminal() -> StudyListener:
    from zenith_tune.report.terminal.terminal import TerminalReporter

    return TerminalReporter()
