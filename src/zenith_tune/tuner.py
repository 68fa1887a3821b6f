"""PresetTuner: the one loop that joins preset, strategy, runner, evaluator and record."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from zenith_tune.errors import (
    ConsecutiveDuplicateLimitExceeded,
    ConsecutivePruneLimitExceeded,
    OptionsWithoutEffect,
    StudyLimitReached,
    TrialExhausted,
    UsageError,
)
from zenith_tune.evaluators.base import TuningEvaluator, choose_evaluator
from zenith_tune.evaluators.early_stop import EarlyStop
from zenith_tune.presets.base import PresetRegistry, TuningPreset, recognised_preset
from zenith_tune.presets.parts import CompletePreset, completed
from zenith_tune.presets.recognition import arguments_in
from zenith_tune.record.reader import recorded_choices
from zenith_tune.record.server.url import shown
from zenith_tune.registry import construct, typed
from zenith_tune.runners.base import Runner, check_runner, make_runner
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.secrets import find_secrets, secrets_of_environment
from zenith_tune.strategies.base import StrategyRegistry, TunedJob, TuningStrategy
from zenith_tune.study.budget import Budget, Estimate, MemoryLimit, Training
from zenith_tune.study.parameters import Params
from zenith_tune.study.study import Study
from zenith_tune.study.verdict import spent_s
from zenith_tune.tuning.config import Limits, StudyConfig
from zenith_tune.tuning.confirmation import Confirmation
from zenith_tune.tuning.events import FIRST_STATE, StudyEnd, StudyListener, StudyPlan
from zenith_tune.tuning.interruption import Interruption, why_stopped
from zenith_tune.tuning.lever_phase import LeverPhase, reserved_trials
from zenith_tune.tuning.place import StudyPlace, check_text
from zenith_tune.tuning.scheduler import TrialScheduler
from zenith_tune.tuning.session import StudySession
from zenith_tune.tuning.watch import Timeouts
from zenith_tune.units import count, format_seconds

_EARLY_STOP = EarlyStop()
LAYOUTS_END = (ConsecutiveDuplicateLimitExceeded, ConsecutivePruneLimitExceeded, TrialExhausted)
"""What ends the search for a layout, after which levers are tried, or named where nothing is left for them."""


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
        budget: Budget | None = None,
        memory: MemoryLimit | None = None,
        confirm: bool = True,
    ) -> None:
        if isinstance(runner, str):
            check_runner(runner, runner_args)  # a mistake is reported now, not when the study begins
        check_text(command, "the training command")
        if retry_failed and not resume:
            raise UsageError("--retry-failed goes with --resume", hint="give both")
        args = dict(tune_args or {})
        preset_name, preset_args, made = _make_preset(preset, command, args)
        made.bind(command)
        self._is_named = strategy is not None
        strategy_name, chosen = _make_strategy(strategy, strategy_args, made, args)
        measure = choose_evaluator(evaluator, evaluator_args, objective, own=made.evaluator, defaults=args)
        needed = made.resources(command).for_gpus(preset_args.get("n_gpus"))
        # A framework prints its configuration, and whatever that holds, into the log.
        texts = [command, *made.baseline_files().values()]
        place = StudyPlace.find(output_dir, study_name, db_path, resume=resume, stem=preset_name.rpartition(":")[2])
        self.config = StudyConfig(
            line=ParsedCommand.of(command),
            preset_name=preset_name,
            preset=made,
            preset_args=preset_args,
            strategy_name=strategy_name,
            strategy=chosen,
            evaluator=measure,
            place=replace(place, retry_failed=retry_failed),
            resources=needed.given(**(needs or {})),
            parallel=parallel,
            secrets=tuple(dict.fromkeys([*secrets_of_environment(os.environ), *chain(*map(find_secrets, texts))])),
            timeouts=timeouts or Timeouts(),
            limits=limits or Limits(),
            repeats=repeats,
            early_stop=early_stop if measure.shows_progress else None,
            budget=_with_steps(budget or Budget(), made, command),
            memory=memory or MemoryLimit(),
            confirm=confirm,
            baseline=baseline,
            dump_env=dump_env,
        )
        if resume:
            made.continue_with(recorded_choices(place.database_url, place.study_name))
        self.config.check_command()
        self._runner, self._runner_args = runner, runner_args
        self._study: Study | None = None
        self._n_trials: int | None = None
        self._listener: StudyListener | Callable[[], StudyListener] | None = listener

    @property
    def preset(self) -> CompletePreset:
        """What knows the training command's options."""
        return self.config.preset

    @property
    def strategy(self) -> TuningStrategy:
        """What picks the points."""
        return self.config.strategy

    def render(self, params: Mapping[str, Any]) -> str:
        """Return the command that a point stands for, ready to run."""
        return self.config.render(params)

    def optimize(self, n_trials: int | None = None) -> tuple[float | None, Params | None]:
        """Run the study; returns the best value and its parameters, or (None, None) if every trial failed.

        Where the user's own command is the fastest, they are its own, as far as they are parameters.
        """
        config = self.config.with_budget(n_trials)
        config.check_program()
        runner = self._runner if isinstance(self._runner, Runner) else make_runner(self._runner, self._runner_args)
        try:
            self._n_trials = n_trials
            return self._optimize(config, runner)
        finally:
            if runner is not self._runner:  # one that was given belongs to whoever gave it
                runner.close()

    def _optimize(self, config: StudyConfig, runner: Runner) -> tuple[float | None, Params | None]:
        runner.prepare(config.resources, config.parallel)
        config.strategy.prepare(self.tuned_job(runner.num_slots, config.place.folder.path))
        runner.reset()
        interruption = Interruption(runner.interrupt, lambda: runner.num_running > 0)
        # The listener is made when there is something to hear: most mistakes are reported before.
        session = StudySession(config, runner, lambda: self.listener, interruption)
        try:
            with interruption:
                session.open()
                if session.config != config:  # it was begun under limits that this run does not state
                    self.config = self.config.with_limits(session.config.budget, session.config.memory)
                    config.strategy.prepare(self.tuned_job(runner.num_slots, config.place.folder.path))
                self.config = self.config.to_resume()
                self._run(session, interruption, runner)
        finally:
            session.close()
        study = session.study
        fastest = study.fastest
        if fastest is None or (study.best is None and not study.own_params):
            return None, None
        return fastest.value, dict(study.own_params or {} if fastest.is_baseline else fastest.params)

    @property
    def listener(self) -> StudyListener:
        """Return who hears of the study; the terminal, where nobody else was named."""
        if not isinstance(self._listener, StudyListener):
            self._listener = (self._listener or _terminal)()
        return self._listener

    @listener.setter
    def listener(self, listener: StudyListener | Callable[[], StudyListener]) -> None:
        self._listener = listener

    def tuned_job(self, num_slots: int = 1, folder: Path | None = None) -> TunedJob:
        """Return what the strategy may know of the job."""
        config = self.config
        subject, unplanned = None, f"preset {config.preset_name} knows no layouts"
        try:
            subject = config.preset.subject(config.command) if config.strategy.plans else None
        except UsageError as error:
            unplanned = str(error)
        return TunedJob(
            subject=subject,
            unplanned=unplanned,
            layout=lambda params: config.preset.planned_layout(config.command, params),
            points=config.preset.points,
            tables=lambda: config.preset.tables(config.command),
            own_point=lambda: config.preset.own_point(config.command),
            baseline=lambda: self._study.baseline if self._study is not None else None,
            training=config.budget.training,
            memory_limit_bytes=config.memory.bytes_of(config.first_capacity_bytes),
            num_slots=num_slots,
            folder=folder,
            tell=lambda line: self.listener.noted(line),
        )

    def _run(self, session: StudySession, interruption: Interruption, runner: Runner) -> None:
        config = session.config
        scheduler = TrialScheduler(
            config,
            session.run_point,
            session.study,
            self.listener,
            recorded=session.recorded,
            num_slots=runner.num_slots,
            check_interrupted=interruption.check,
            others=session.others,
        )
        why = "it failed"
        self._study = session.study
        try:
            plan = _plan(session, runner)
            session.begin_search(plan)
            self.listener.study_started(plan)
            if config.dump_env:
                session.dump_environment()
            why = self._search(scheduler, session, plan)
            session.limit_memory()
            side_by_side = runner.shares_machine and runner.num_slots > 1
            if (side_by_side or config.confirm) and session.study.is_sound:
                self._confirm(session, side_by_side=side_by_side)
        except BaseException as error:
            why = why_stopped(error) or why
            runner.interrupt()  # nothing that other threads still run is worth waiting for
            raise
        finally:
            try:
                scheduler.close()
            finally:
                self._end(session, why)

    def _search(self, scheduler: TrialScheduler, session: StudySession, plan: StudyPlan) -> str:
        """Run the user's own command, and the strategy to its end; wait for what it submitted, return what ended it."""
        config, strategy = session.config, session.config.strategy
        try:
            if config.runs_baseline:
                session.run_baseline()
            self._learn(session, plan.num_slots)
            config, strategy = session.config, session.config.strategy
            scheduler.continue_with(config)
            if config.runs_baseline and (line := _estimate(session, plan)) is not None:
                self.listener.noted(line)
            try:
                with scheduler.leaving(reserved_trials(config)):
                    strategy.optimize(scheduler, config.preset.get_search_space(), config.evaluator.direction)
                    scheduler.settle()
                why = strategy.why_done() or "every planned trial has run"
            except LAYOUTS_END as limit:
                why = str(limit)
                with contextlib.suppress(TrialExhausted):  # of trials that the same limit cut off
                    scheduler.settle()
            LeverPhase(session, scheduler, self.listener.noted).run()
        except StudyLimitReached as limit:
            why, session.study.is_sound = str(limit), not isinstance(limit, OptionsWithoutEffect)
        try:
            scheduler.drain()
        except StudyLimitReached as limit:
            why = str(limit)
        return why

    def _learn(self, session: StudySession, num_slots: int) -> None:
        """Let preset and strategy learn from the user's own command, before the strategy is asked for points."""
        notes = session.learn()
        for line in notes:
            self.listener.noted(line)
        if not notes:
            return
        self._choose_again(session)
        session.config.strategy.prepare(self.tuned_job(num_slots, session.config.place.folder.path))

    def _choose_again(self, session: StudySession) -> None:
        """Search by the strategy that the preset recommends by now, where the user names none."""
        if self._is_named:
            return
        name, strategy = _make_strategy(None, None, session.config.preset, {})
        if name == session.config.strategy_name:
            return
        self.config = replace(self.config, strategy_name=name, strategy=strategy)
        session.search_by(self.config.with_budget(self._n_trials))
        self.listener.noted(f"strategy {name} searches from here, by what your own command has shown")

    def _confirm(self, session: StudySession, *, side_by_side: bool) -> None:
        try:
            for line in Confirmation(session, side_by_side=side_by_side, claims=session.config.confirm).run():
                self.listener.noted(line)
        except StudyLimitReached as limit:
            is_confirmed = session.verdict().is_confirmed
            missing = "trials that may be as fast are not run again" if is_confirmed else "the gain is not confirmed"
            self.listener.noted(f"{missing}: {limit}")

    def _end(self, session: StudySession, why: str) -> None:
        config, study = session.config, session.study
        folder, findings = config.place.folder, config.strategy.findings()
        is_cut_off, verdict = why.startswith("interrupted"), session.verdict()
        end = StudyEnd(
            study=study,
            why=why,
            best_command=session.best_command(),
            csv_path=folder.csv,
            json_path=folder.json,
            trials_path=folder.path / "trials",
            database_url=shown(config.place.database_url),
            best_command_path=folder.best_command,
            study_name=config.place.study_name,
            warnings=config.line.warnings(),
            findings=findings,
            verdict=verdict,
            diagnosis=_diagnosis(session, why) if not is_cut_off else [],
        )
        try:
            session.end_search(why, findings, verdict)
            session.export()
        finally:
            self.listener.study_ended(end)


def _with_steps(budget: Budget, preset: CompletePreset, command: str) -> Budget:
    """Return the budget with the steps that the command trains, where nobody stated how long the training is."""
    if budget.training.hours is not None or budget.training.steps is not None:
        return budget
    return replace(budget, training=Training(steps=preset.train_steps(command)))


def _diagnosis(session: StudySession, why: str) -> list[str]:
    """Return what limits the fastest run; where the options take no effect, there is nothing else to say of it."""
    from zenith_tune.doctor.diagnosis import study_diagnosis  # loads the planner

    config, study = session.config, session.study
    return study_diagnosis(config.preset, config.command, study) if study.is_sound else [why]


def _plan(session: StudySession, runner: Runner) -> StudyPlan:
    config = session.config
    bounds = [config.limits.n_trials, config.strategy.max_trials(config.preset.get_search_space())]
    return StudyPlan(
        study_name=config.place.study_name,
        preset=config.preset_name,
        strategy=config.strategy_name,
        evaluator=config.evaluator.describe(),
        command=config.masked_command,
        n_trials=config.limits.n_trials,
        max_trials=min((bound for bound in bounds if bound is not None), default=None),
        num_finished=len(session.recorded),
        notes=config.notes([*runner.notes(), *runner.command_notes(config.command)]),
        num_slots=runner.num_slots,
        budget=config.priced_budget,
        num_gpus=config.num_gpus or 1,
        first_state=FIRST_STATE if runner.shares_machine else "starting",  # there it may have to wait
        labels={trial.number or 0: session.label(trial) for trial in session.recorded.values()},
        study=session.study,
    )


def _estimate(session: StudySession, plan: StudyPlan) -> str | None:
    """Say what the study will take, by how long the user's own command took; nothing where that is not known."""
    base = session.study.baseline
    space, strategy = session.config.preset.get_search_space(), session.config.strategy
    num = min((n for n in (plan.n_trials, strategy.expected_trials(space)) if n is not None), default=None)
    if base is None or not base.ok or base.duration_s is None or not num:
        return None
    num_left = max(num - plan.num_finished, 0)
    run_s = base.duration_s * base.num_runs
    whole = Estimate(
        num_trials=num_left,
        wall_s=run_s * math.ceil(num_left / plan.num_slots),
        gpu_s=run_s * num_left * plan.num_gpus,
    )
    spent_gpu_s = spent_s(session.study) * plan.num_gpus
    found = plan.budget.bounded(whole, spent_gpu_s=spent_gpu_s, elapsed_s=session.elapsed_s)
    trials = f"about {count(found.num_trials, 'trial')} like your own command ({format_seconds(base.duration_s)})"
    ends = f"; the budget of {plan.budget.describe()} ends the study before its {num_left} trials" * found.is_cut
    return f"estimate: {trials}: {format_seconds(found.wall_s)}, {plan.budget.cost(found.gpu_s)}{ends}"


def _make_preset(
    preset: str | TuningPreset | None, command: str, args: Mapping[str, Any]
) -> tuple[str, dict[str, Any], CompletePreset]:
    if isinstance(preset, TuningPreset):
        return type(preset).__name__, {}, completed(preset)
    name = preset or recognised_preset(command)
    cls = PresetRegistry.get(name)
    # Typed, so that a resumed study may write n_gpus=08 for 8.
    known = typed(cls, {**arguments_in(name, command), **args}, f"preset {name}")
    return name, known, completed(construct(cls, known, f"preset {name}"))


def _make_strategy(
    strategy: str | TuningStrategy | None,
    args: Mapping[str, Any] | None,
    preset: TuningPreset,
    defaults: Mapping[str, Any],
) -> tuple[str, TuningStrategy]:
    if isinstance(strategy, str):
        cls = StrategyRegistry.get(strategy)
        return strategy, construct(cls, args or {}, f"strategy {strategy}", defaults=defaults)
    if args:
        raise UsageError("--strategy-args belong to a strategy", hint="name it by --strategy")
    chosen = strategy or preset.get_recommended_strategy()
    return StrategyRegistry.name_of(type(chosen)), chosen


def _terminal() -> StudyListener:
    from zenith_tune.report.terminal.terminal import TerminalReporter

    return TerminalReporter()
