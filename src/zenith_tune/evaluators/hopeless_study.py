"""Tells when a study can only go on failing: each run may cost minutes of many GPUs."""

from __future__ import annotations

from zenith_tune.errors import EveryRunFailsAlike, UsageError
from zenith_tune.evaluators.failures.failures import FailureKind, names_unknown_option
from zenith_tune.layouts.axis_words import named_axes
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial

MAX_RUNS_WITHOUT_METRIC = 3
MAX_ALIKE_FAILURES = 3


def refuse_hopeless(study: Study) -> None:
    """Stop a study whose every run ends well and prints no value, or fails for one cause that no layout cures."""
    _refuse_without_metric(study)
    _refuse_alike(study)


def _refuse_without_metric(study: Study) -> None:
    trials = study.trials
    if len(trials) >= MAX_RUNS_WITHOUT_METRIC and all(t.failure == FailureKind.METRIC for t in trials):
        last = trials[-1]
        raise UsageError(f"the first {len(trials)} trials ran to their end, but {last.cause} (see {last.folder})")


def _refuse_alike(study: Study) -> None:
    base, trials = study.baseline, study.trials
    if len(trials) < MAX_ALIKE_FAILURES:
        return
    # Out of memory, too slow or refused by a rule: another layout may cure each of these, but not a fault of the
    # program, nor what no layout has a part in.
    causes = {trial.cause for trial in trials}
    if len(causes) == 1 and all(_is_no_fault_of_its_layout(trial) for trial in trials):
        if base is not None and base.cause in causes:
            raise EveryRunFailsAlike(f"your own command and {len(trials)} trials failed alike: {base.cause}")
        if base is None:
            raise EveryRunFailsAlike(f"the first {len(trials)} trials failed alike: {trials[-1].cause}")
    if all(names_unknown_option(trial.cause) for trial in trials):
        cure = "choose another --preset, or write {placeholders} where the values belong"
        raise EveryRunFailsAlike(f"the program does not take the preset's options: {trials[-1].cause}; {cure}")


def _is_no_fault_of_its_layout(trial: Trial) -> bool:
    refused = trial.failure == FailureKind.CONFIGURATION and not named_axes(trial.cause or "")
    return refused or trial.failure in (FailureKind.CRASH, FailureKind.NOT_FOUND)
