"""What is said of a study at its end: what limits its fastest run, in a few lines."""

from __future__ import annotations

from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.doctor.diagnosed_run import emitted
from zenith_tune.doctor.diagnosis import diagnose
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.doctor.diagnosis_words import diagnosis_lines
from zenith_tune.doctor.measured import Measured
from zenith_tune.doctor.run_origin import RunOrigin
from zenith_tune.doctor.tried_layouts import tried_layouts
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.base import TuningPreset
from zenith_tune.registry import PresetRegistry
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial


def study_diagnosis(preset: TuningPreset, command: str, study: Study) -> list[str]:
    """Return what limits the fastest run of a study, or the first that ran out of memory where none went well."""
    trial = study.fastest or next((each for each in study.trials if each.outcome is Outcome.OOM), None)
    if trial is None:
        return []
    try:
        subject = preset.subject(command)
        point = trial.params or preset.own_point(command)
        layout = preset.planned_layout(command, point) if point else None
    except UsageError:  # model or cluster are not known, of which the study's own notes tell
        return []
    if subject is None or layout is None:
        return []
    origin = RunOrigin(
        emit=emitted(PresetRegistry.name_of(type(preset)), command),
        unasked=() if trial.params else tuple(preset.unasked_sizes(command)),
        tried=tried_layouts(preset, command, [each.params for each in study.trials], but=layout),
    )
    return trial_diagnosis(subject, layout, trial, origin)


def trial_diagnosis(subject: PlanSubject, layout: Layout, trial: Trial, origin: RunOrigin | None = None) -> list[str]:
    """Return what limits a trial of a layout, and what to change; nothing where that cannot be reckoned."""
    is_out = trial.outcome is Outcome.OOM
    measured = Measured(
        step_s=None if is_out else trial.step_s,
        peak_bytes=None if is_out else trial.peak_memory_bytes,
        out_of_memory=is_out,
    )
    try:
        planner = Planner(subject.model, subject.cluster, subject.job)
        case = Case.of(planner, layout, measured=measured, origin=origin)
    except UsageError:  # the run is the user's own, and may break rules that a plan needs
        return []
    return diagnosis_lines(diagnose(case))
