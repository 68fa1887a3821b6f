"""Prints a dry run: the commands that would run, and why other points would not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import IO

from zenith_tune.errors import OptionsWithoutEffect, StudyLimitReached, UsageError
from zenith_tune.shell.scripts.opened import training_line
from zenith_tune.shell.secrets import mask
from zenith_tune.strategies.base import TunedJob
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Prediction, Trial
from zenith_tune.tuning.config import StudyConfig
from zenith_tune.tuning.events import StudyListener
from zenith_tune.tuning.lever_phase import reserved_trials
from zenith_tune.tuning.scheduler import TrialScheduler
from zenith_tune.units import count

ASSUMPTION = "every trial is assumed to succeed with the same value; real results decide what follows the first"


class DryRunListener(StudyListener):
    """A listener to a dry run."""

    def dry_run_started(self, plan: str, baseline: str | None) -> None:
        """Take note of what is planned, and of the command that would run first."""

    def point_would_run(
        self, number: int, label: str, command: str, params: Mapping[str, Value], predicted: Prediction | None
    ) -> None:
        """Take note of a point that would be a trial, and of what the preset expects of it."""

    def dry_run_ended(self, num_trials: int, num_pruned: int, why: str) -> None:
        """Take note of the end."""


def dry_run(config: StudyConfig, job: TunedJob, listener: DryRunListener) -> None:
    """Walk through the study's points in the strategy's order."""
    study = Study(config.evaluator.direction)
    if config.runs_baseline:  # the point that it stands for is no trial
        own = Trial(params={}, outcome=Outcome.OK, value=1.0, command=config.masked_command, is_baseline=True)
        study.add(own)

    def pretend(params: Params, identity: str, why: str) -> Trial:
        number = len(study.trials) + config.runs_baseline
        command = mask(config.render(params), config.secrets)
        listener.point_would_run(number, config.preset.label(params), command, params, config.preset.predicted(params))
        trial = Trial(params=params, outcome=Outcome.OK, value=1.0, number=number, command=command, why=why)
        study.add(trial)
        return trial

    plan = f"preset {config.preset_name}, strategy {config.strategy_name}, {config.evaluator.describe()}"
    try:
        config.preset.read_baseline("")
    except UsageError as error:
        if not config.runs_baseline:
            raise
        listener.dry_run_started(plan, config.masked_command)
        for note in [*config.warnings(), *config.notes()]:
            listener.noted(note)
        listener.dry_run_ended(0, 0, f"only a run of your own command can show the trials: {error.problem}")
        return
    config.strategy.prepare(replace(job, tell=listener.noted))
    listener.dry_run_started(plan, config.masked_command if config.runs_baseline else None)
    for note in [*config.warnings(), *config.notes(), ASSUMPTION]:
        listener.noted(note)
    evaluation = TrialScheduler(config, pretend, study, listener, recorded={})
    why = f"strategy {config.strategy_name} has no more points on that assumption"
    try:
        with evaluation.leaving(reserved_trials(config)):
            config.strategy.optimize(evaluation, config.preset.get_search_space(), config.evaluator.direction)
    except OptionsWithoutEffect:
        pass  # that is what was assumed
    except StudyLimitReached as limit:
        why = str(limit)
    listener.dry_run_ended(len(study.trials), study.num_pruned, why)


_MAX_PRUNED_LINES = 20


class DryRunText(DryRunListener):
    """A dry run for people: every command, and the first of the pruned points."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._num_pruned = 0

    def dry_run_started(self, plan: str, baseline: str | None) -> None:
        self._say(f"dry run: {plan}")
        if baseline is not None:
            self._say(f"trial    0  your command\n  {training_line(baseline)}")

    def point_would_run(
        self, number: int, label: str, command: str, params: Mapping[str, Value], predicted: Prediction | None
    ) -> None:
        self._say(f"trial {number:>4}  {label}\n  {training_line(command)}")
        if predicted is not None:
            parts = [f"{name} {seconds * 1e3:.1f} ms" for name, seconds in predicted.parts_s.items()]
            memory = [] if predicted.memory_bytes is None else [f"{predicted.memory_bytes / 2**30:.3g} GiB"]
            figures = ", ".join([f"{predicted.step_s * 1e3:.1f} ms a step", *parts, *memory])
            self._say(f"  {figures} by {predicted.by}")

    def point_pruned(self, params: Mapping[str, Value], label: str, reason: str) -> None:
        self._num_pruned += 1
        if self._num_pruned <= _MAX_PRUNED_LINES:
            self._say(f"pruned      {label}: {reason}")
        elif self._num_pruned == _MAX_PRUNED_LINES + 1:
            self._say("pruned      ... more follow; --json lists them all")

    def noted(self, line: str) -> None:
        self._say(f"note: {line}")

    def dry_run_ended(self, num_trials: int, num_pruned: int, why: str) -> None:
        counts = f"{count(num_trials, 'trial')} would run, {count(num_pruned, 'point')} pruned"
        self._say(f"{counts}; {why}. Nothing was run or written.")

    def _say(self, line: str) -> None:
        print(line, file=self._stream)


class DryRunJson(DryRunListener):
    """A dry run for programs: one JSON object per line."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def dry_run_started(self, plan: str, baseline: str | None) -> None:
        self._write(event="dry_run_started", plan=plan, baseline=baseline)

    def point_would_run(
        self, number: int, label: str, command: str, params: Mapping[str, Value], predicted: Prediction | None
    ) -> None:
        fields = {"number": number, "label": label, "command": command, "parameters": dict(params)}
        if predicted is not None:
            parts = {f"{name.replace(' ', '_')}_s": seconds for name, seconds in predicted.parts_s.items()}
            known = {"step_s": predicted.step_s, **parts, "memory_bytes": predicted.memory_bytes, "by": predicted.by}
            fields["predicted"] = known
        self._write(event="would_run", **fields)

    def point_pruned(self, params: Mapping[str, Value], label: str, reason: str) -> None:
        self._write(event="point_pruned", label=label, parameters=dict(params), reason=reason)

    def noted(self, line: str) -> None:
        self._write(event="note", text=line)

    def dry_run_ended(self, num_trials: int, num_pruned: int, why: str) -> None:
        self._write(event="dry_run_ended", num_trials=num_trials, num_pruned=num_pruned, why=why)

    def _write(self, **content: object) -> None:
        print(json.dumps(content), file=self._stream)
