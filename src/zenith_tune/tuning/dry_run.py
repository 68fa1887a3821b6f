"""Shows what a study would run and what it would leave out, without running or writing anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from zenith_tune.errors import StudyLimitReached
from zenith_tune.shell.secrets import mask
from zenith_tune.strategies.prediction import Prediction
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.tuner import PresetTuner
from zenith_tune.tuning.events import StudyListener
from zenith_tune.tuning.scheduler import Evaluation, Limits

ASSUMPTION = "every trial is assumed to go well with the same value; real results may lead elsewhere"


class DryRunListener(StudyListener):
    """Hear of the points of a dry run."""

    def dry_run_started(self, plan: str, baseline: str | None) -> None:
        """Hear of what is planned, and of the command that would run first."""

    def point_would_run(
        self, number: int, label: str, command: str, params: Mapping[str, Value], predicted: Prediction | None
    ) -> None:
        """Hear of a point that would be a trial, and of what the preset expects of it."""

    def dry_run_ended(self, num_trials: int, num_pruned: int, why: str) -> None:
        """Hear of the end."""


def dry_run(tuner: PresetTuner, n_trials: int | None, listener: DryRunListener) -> None:
    """Walk through the study's points in the strategy's order."""
    study = Study(tuner.evaluator.direction)
    limits: Limits = tuner.budget(n_trials)

    def pretend(params: Params, identity: str, why: str) -> Trial:
        number = len(study.trials) + tuner.runs_baseline
        command = mask(tuner.render(params), tuner.secrets)
        listener.point_would_run(number, tuner.preset.label(params), command, params, tuner.preset.predicted(params))
        trial = Trial(params=params, outcome=Outcome.OK, value=1.0, number=number, command=command, why=why)
        study.add(trial)
        return trial

    tuner.strategy.prepare(replace(tuner.tuned_job(), tell=listener.noted))
    plan = f"preset {tuner.preset_name}, strategy {tuner.strategy_name}, {tuner.evaluator.describe()}"
    listener.dry_run_started(plan, mask(tuner.command, tuner.secrets) if tuner.runs_baseline else None)
    for note in [*tuner.notes(), ASSUMPTION]:
        listener.noted(note)
    evaluation = Evaluation(tuner.preset, tuner.identify, pretend, study, listener, limits, recorded={})
    why = f"strategy {tuner.strategy_name} came to its end"
    try:
        tuner.strategy.optimize(evaluation, tuner.preset.get_search_space(), tuner.evaluator.direction)
    except StudyLimitReached as limit:
        why = str(limit)
    listener.dry_run_ended(len(study.trials), study.num_pruned, why)
