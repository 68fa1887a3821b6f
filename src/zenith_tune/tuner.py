"""PresetTuner: the one loop that joins preset, strategy, runner, evaluator and record."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zenith_tune.errors import OptionsWithoutEffect, StudyLimitReached, TrialExhausted, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.presets.base import TuningPreset
from zenith_tune.presets.parts import CompletePreset
from zenith_tune.record.server.url import shown
from zenith_tune.runners.base import Runner, make_runner
from zenith_tune.strategies.base import TunedJob, TuningStrategy
from zenith_tune.study.budget import Estimate
from zenith_tune.study.parameters import Params
from zenith_tune.study.study import EndReason, Study, StudyEnding
from zenith_tune.study.verdict import spent_s
from zenith_tune.tuning.config import StudyConfig
from zenith_tune.tuning.confirmation import MAX_RUNS, Confirmation, reserved_runs
from zenith_tune.tuning.events import FIRST_STATE, StudyEnd, StudyListener, StudyPlan
from zenith_tune.tuning.interruption import LIMITS, Interruption, ending_by
from zenith_tune.tuning.lever_phase import LeverPhase, most_trials, reserved_trials
from zenith_tune.tuning.options import TuneOptions
from zenith_tune.tuning.resolve import make_strategy, resolve, resolve_runner
from zenith_tune.tuning.scheduler import TrialScheduler
from zenith_tune.tuning.session import StudySession
from zenith_tune.units import count, format_seconds


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
        words: tuple[str, ...] | None = None,
        owns_process: bool = False,
        **options: Any,
    ) -> None:
        """Resolve the options, which are those of `TuneOptions`, and refuse what cannot be a study.

        `words` are the options of the command line, to resume the study with; a tuner that `owns_process` also ends
        the processes that trials leave behind.
        """
        named: dict[str, Any] = {"preset": preset, "strategy": strategy, "evaluator": evaluator}
        named.update(output_dir=output_dir, study_name=study_name, db=db_path, dump_env=dump_env, args=tune_args)
        chosen = TuneOptions(**{**{name: value for name, value in named.items() if value is not None}, **options})
        if chosen.notify is not None:
            from zenith_tune.notification import check_webhook

            check_webhook(chosen.notify)
        self._runner = resolve_runner(chosen)
        if isinstance(self._runner, tuple):
            name, args = self._runner
            make_runner(name, args).close()  # a mistake is reported now, not when the study begins
            self._runner = (name, {**args, "owns_process": "true"} if owns_process and name == "local" else args)
        self.config = resolve(command, chosen, words)
        self._listener = chosen.listener
        self._study: Study | None = None

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
        runner = self._runner if isinstance(self._runner, Runner) else make_runner(*self._runner)
        try:
            if not runner.has_own_programs:
                config.check_program()
            return self._optimize(config, runner)
        finally:
            if runner is not self._runner:  # one that was given belongs to whoever gave it
                runner.close()

    def _optimize(self, config: StudyConfig, runner: Runner) -> tuple[float | None, Params | None]:
        runner.prepare(config.resources, config.num_parallel)
        config.strategy.prepare(self.tuned_job(runner.num_slots, config.place.folder.path))
        runner.reset()
        interruption = Interruption(runner.interrupt, lambda: runner.num_running > 0)
        # The listener is made when there is something to report: most mistakes are found before.
        session = StudySession(config, runner, lambda: self.listener, interruption)
        try:
            with interruption:
                session.open()
                if session.config is not config:  # it was begun under limits that this run does not state
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
        """What reports the study; the terminal, where no other listener was named."""
        if not isinstance(self._listener, StudyListener):
            self._listener = (self._listener or _terminal)()
        return self._listener

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
            phases=config.preset.phases,
            tables=lambda: config.preset.tables(config.command),
            own_point=lambda: config.preset.own_point(config.command),
            baseline=lambda: self._study.baseline if self._study is not None else None,
            training=config.budget.training,
            memory_limit_bytes=config.memory.bytes_of(config.first_capacity_bytes),
            num_slots=num_slots,
            folder=folder,
            tell=lambda line: self.listener.explained(line),
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
        ending = StudyEnding(EndReason.FAILED, "it failed")
        self._study = session.study
        side_by_side = runner.shares_machine and runner.num_slots > 1 and config.options.confirm
        has_own = config.runs_baseline or session.study.baseline is not None
        may_confirm = side_by_side or (config.patience.confirms and has_own)
        try:
            plan = _plan(session, runner, may_confirm=may_confirm)
            session.begin_search(plan)
            self.listener.study_started(plan)
            if config.options.dump_env:
                session.dump_environment()
            ending = self._search(scheduler, session, plan, may_confirm=may_confirm)
            session.limit_memory()
            if may_confirm and session.study.is_sound:
                self._confirm(session, side_by_side=side_by_side)
        except BaseException as error:
            ending = ending_by(error)
            runner.interrupt()  # nothing that other threads still run is worth waiting for
            raise
        finally:
            try:
                scheduler.close()
            finally:
                self._end(session, ending)

    def _search(
        self, scheduler: TrialScheduler, session: StudySession, plan: StudyPlan, *, may_confirm: bool
    ) -> StudyEnding:
        """Run the user's own command and the strategy, wait for what it submitted, and return what ended it."""
        config, strategy = session.config, session.config.strategy
        try:
            if config.runs_baseline:
                session.run_baseline()
            self._learn(session, plan.num_slots)
            config, strategy = session.config, session.config.strategy
            scheduler.continue_with(config)
            num_kept = reserved_runs(config.limits.n_trials) if may_confirm else 0
            session.bound(_most_trials(config, may_confirm=may_confirm))
            self.listener.search_began(_outlook(session, plan))
            try:
                with scheduler.leaving(reserved_trials(config) + num_kept):
                    strategy.optimize(scheduler, config.preset.get_search_space(), config.evaluator.direction)
                    scheduler.settle()
                ending = StudyEnding(EndReason.DONE, strategy.why_done() or "every planned trial has run")
            except LIMITS as limit:
                ending = ending_by(limit)
                with contextlib.suppress(TrialExhausted):  # of trials that the same limit cut off
                    scheduler.settle()
            with scheduler.leaving(num_kept):
                LeverPhase(session, scheduler, self.listener.explained).run()
        except StudyLimitReached as limit:
            ending, session.study.is_sound = ending_by(limit), not isinstance(limit, OptionsWithoutEffect)
        try:
            scheduler.drain()
        except StudyLimitReached as limit:
            ending = ending_by(limit)
        return ending

    def _learn(self, session: StudySession, num_slots: int) -> None:
        """Let preset and strategy learn from the user's own command, before the strategy is asked for points."""
        notes = session.learn()
        for line in notes:
            self.listener.explained(line)
        if not notes:
            return
        if self.config.options.strategy is None:  # the preset may recommend another by now
            name, strategy = make_strategy(None, {}, session.config.preset, {})
            if name != session.config.strategy_name:
                self.config = replace(self.config, strategy_name=name, strategy=strategy)
                session.search_by(name, strategy)
                self.listener.explained(f"strategy {name} searches from here, by what your own command has shown")
        session.config.strategy.prepare(self.tuned_job(num_slots, session.config.place.folder.path))

    def _confirm(self, session: StudySession, *, side_by_side: bool) -> None:
        try:
            patience = session.config.patience
            confirmation = Confirmation(
                session, side_by_side=side_by_side, claims=patience.confirms, always=patience.confirms_always
            )
            for line in confirmation.run():
                self.listener.explained(line)
            if (drift := confirmation.drift()) is not None:
                self.listener.noted(drift)
        except StudyLimitReached as limit:
            is_confirmed = session.verdict().is_confirmed
            missing = "trials that may be as fast are not run again" if is_confirmed else "the gain is not confirmed"
            self.listener.noted(f"{missing}: {limit}")

    def _end(self, session: StudySession, ending: StudyEnding) -> None:
        config, study = session.config, session.study
        folder, findings = config.place.folder, config.strategy.findings()
        verdict = session.verdict()
        end = StudyEnd(
            study=study,
            reason=ending.reason,
            why=ending.why,
            best_command=session.best_command(),
            csv_path=folder.csv,
            json_path=folder.json,
            trials_path=folder.path / "trials",
            database_url=shown(config.place.database_url),
            best_command_path=folder.best_command,
            best_diff_path=folder.best_diff,
            study_name=config.place.study_name,
            warnings=config.line_warnings(),
            findings=findings,
            verdict=verdict,
            diagnosis=[] if ending.reason is EndReason.INTERRUPTED else _diagnosis(session, ending.why),
        )
        try:
            session.end_search(ending, findings, verdict)
            session.keep_launches()
            session.export()
        finally:
            self.listener.study_ended(end)
            if (url := config.options.notify) is not None:
                from zenith_tune.notification import notify

                if (problem := notify(url, end)) is not None:
                    self.listener.noted(problem)


def _diagnosis(session: StudySession, why: str) -> list[str]:
    """Return what limits the fastest run; where the options take no effect, there is nothing else to say of it."""
    from zenith_tune.doctor.diagnosis import study_diagnosis  # loads the planner
    from zenith_tune.record.restored_preset import study_calibration

    config, study = session.config, session.study
    if not study.is_sound:
        return [why]
    return study_diagnosis(config.preset, config.command, study, study_calibration(config.place.folder.path))


def _plan(session: StudySession, runner: Runner, *, may_confirm: bool) -> StudyPlan:
    config = session.config
    return StudyPlan(
        study_name=config.place.study_name,
        preset=config.preset_name,
        strategy=config.strategy_name,
        evaluator=config.evaluator.describe(),
        command=config.masked_command,
        n_trials=config.limits.n_trials,
        max_trials=_most_trials(config, may_confirm=may_confirm),
        num_finished=len(session.recorded),
        title=config.title,
        own_label=config.preset.label(own) if (own := session.study.own_params) else "",
        warnings=config.warnings(runner.warnings()),
        notes=config.notes([*runner.notes(), *runner.command_notes(config.command)]),
        num_slots=runner.num_slots,
        budget=config.priced_budget,
        num_gpus=config.num_gpus or 1,
        first_state=FIRST_STATE if runner.shares_machine else "starting",  # there it may have to wait
        labels={trial.number: session.label(trial) for trial in session.recorded.values()},
        study=session.study,
    )


def _most_trials(config: StudyConfig, *, may_confirm: bool) -> int | None:
    """Return how many trials there are at most: those of the search, of levers, and what confirms the gain."""
    search, budget = config.strategy.max_trials(config.preset.get_search_space()), config.limits.n_trials
    if search is None:
        return budget
    whole = search + most_trials(config) + (MAX_RUNS if may_confirm else 0)
    return whole if budget is None else min(whole, budget)


def _outlook(session: StudySession, plan: StudyPlan) -> str:
    """Say what is searched, and what that will take by how long the user's own command took."""
    space, strategy = session.config.preset.get_search_space(), session.config.strategy
    num = min((n for n in (plan.n_trials, strategy.expected_trials(space)) if n is not None), default=None)
    if session.was_done:  # it goes on only where the options of this run are others
        num = None
    trials = [] if num is None else [_expected(session, plan, max(num - plan.num_finished, 0))]
    job = session.config.preset.describe_job(session.config.masked_command)
    learned = f"{job}: " if job and job not in plan.title else ""
    return learned + "; ".join(filter(None, [strategy.scope(), *trials]))


def _expected(session: StudySession, plan: StudyPlan, num_left: int) -> str:
    base = session.study.baseline
    if base is None or not base.ok or base.duration_s is None:
        return f"about {count(num_left, 'short trial')}"
    run_s = base.duration_s * base.num_runs
    spent_gpu_s = spent_s(session.study) * plan.num_gpus

    def estimated(num_trials: int) -> Estimate:
        wall_s = run_s * math.ceil(num_trials / plan.num_slots)
        whole = Estimate(num_trials=num_trials, wall_s=wall_s, gpu_s=run_s * num_trials * plan.num_gpus)
        return plan.budget.bounded(whole, spent_gpu_s=spent_gpu_s, elapsed_s=session.elapsed_s)

    found = estimated(num_left)
    trials = f"about {count(found.num_trials, 'short trial')}"
    ends = f"; the budget of {plan.budget.describe()} ends the study before its {num_left} trials" * found.is_cut
    most = estimated(max((session.study.max_trials or 0) - session.study.num_budgeted, 0))
    if most.num_trials > found.num_trials:
        ends += f"; with what confirms a gain at most {count(most.num_trials, 'run')}, {format_seconds(most.wall_s)}"
    cost = f" ({plan.budget.cost(found.gpu_s)})" if session.config.num_gpus or plan.budget.price else ""
    return f"{trials}, {format_seconds(found.wall_s)}{cost}{ends}"


def _terminal() -> StudyListener:
    from zenith_tune.report.terminal.terminal import TerminalReporter

    return TerminalReporter()
