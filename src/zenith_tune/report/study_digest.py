"""All that is shown of a study, as plain values: what the page draws, and what `--format json` writes."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace

from zenith_tune import __version__
from zenith_tune.doctor.diagnosis import study_diagnosis
from zenith_tune.evaluators.failures.failures import reported_capacity
from zenith_tune.planner.plan import PlannedLayout
from zenith_tune.record.export import batch_note, command_to_copy
from zenith_tune.record.restored_preset import FROM_ANOTHER_RELEASE, RestoredPreset
from zenith_tune.record.source import StudySource
from zenith_tune.record.view import StudyView, TrialView, unfinished
from zenith_tune.report.next_experiments import next_experiments
from zenith_tune.report.search_digest import best_so_far, search_object
from zenith_tune.report.trial_digest import best_layout_object, finite, needed_memory, predicted_object, resolved_args
from zenith_tune.runners.local.gpu_usage import POWER, UTILIZATION
from zenith_tune.shell.command_diff import command_diff
from zenith_tune.study.changes import Change, changes_text
from zenith_tune.study.files import Json, TrialFolder
from zenith_tune.study.trial import START, Outcome, Prediction, Trial
from zenith_tune.study.trial_log import printable
from zenith_tune.study.verdict import verdict_of
from zenith_tune.units import count, format_value, whole

_FIELDS = (
    *("speedup", "low", "high", "is_confirmed", "is_clear", "ties"),
    *("memory_share", "safer", "cost", "pays_after_hours"),
)
_LEAST_SPEEDUP = 0.005
"""The least factor beside 1 that is a step of a waterfall."""


def standing_object(view: StudyView, preset: RestoredPreset, capacity_bytes: float | None) -> Json:
    """Return the headline of a study with what its verdict says of gain, memory and cost."""
    planner = preset.planner
    num_gpus = planner.cluster.num_gpus if planner is not None else whole(view.header.args.get("n_gpus", ""))
    values = verdict_object(view, num_gpus, capacity_bytes)
    changes = [Change(**change) for change in values.get("changes", ())]
    return {
        "headline": headline(view),
        "summary": values.get("headline") or values.get("sentence", ""),
        **{name: finite(values.get(name)) for name in _FIELDS},
        "changes": changes_text(changes),
        "gains": _gains(values, changes),
        "gpu_hours": finite(values.get("gpu_hours")) if num_gpus else None,
        "num_gpus": num_gpus,
    }


def _gains(values: Json, changes: list[Change]) -> list[Json]:
    """Return what the layout and each group of levers brought, in order; nothing where levers brought nothing."""
    groups = values.get("lever_gains", ())
    levers = {name.partition("=")[0] for group in groups for name in group["levers"]}
    layout = changes_text(replace(change, speedup=None) for change in changes if change.name not in levers)
    gains = [(layout or "layout", values.get("layout_speedup"))] if groups else []
    gains += [(" + ".join(group["levers"]), group["speedup"]) for group in groups]
    return [{"name": name, "speedup": speedup} for name, speedup in gains if abs((speedup or 1.0) - 1) > _LEAST_SPEEDUP]


def verdict_object(view: StudyView, num_gpus: int | None = None, capacity_bytes: float | None = None) -> Json:
    """Return the verdict of a study that has ended, or what it would be by the trials so far; empty where none is."""
    if view.search.stopped and "sentence" in view.search.verdict:
        return dict(view.search.verdict)
    try:
        return asdict(verdict_of(view.study, view.search.budget, num_gpus=num_gpus, capacity_bytes=capacity_bytes))
    except FROM_ANOTHER_RELEASE:  # values that somebody changed may be beyond all numbers
        return {}


def headline(view: StudyView) -> str:
    """Return what a study comes to in a few words."""
    study, ended = view.study, bool(view.search.stopped)
    if not any(trial.ok for trial in study.trials):
        if view.running and not ended:
            return "No trial has succeeded yet" if study.trials else "No trial has ended yet"
        return "Every trial failed" if study.trials else "No trial ran"
    best = study.best
    if best is None:
        return "No trial stays within the memory limit"
    if study.best_is_own or study.is_within_noise:
        return "No gain beyond the noise" + " so far" * (not ended)
    if study.fastest is not best:
        return "Your own command is the fastest" + " so far" * (not ended)
    if study.gain is None:
        return f"Best: {format_value(best.value or 0.0, best.unit)}"
    return f"{1 + study.gain:.2f}× {'faster' if best.step_s is not None else 'better'} than your command"


LINES_OF_FAILED, LINES_OF_OTHERS = 30, 5
"""How much of a log is shown: it explains a failure, not a success."""
MAX_CAUSES = 6


class StudyDigest:
    """The digest of a study that may still run; what cannot change any more is worked out once."""

    def __init__(self, source: StudySource, diagnosis: list[str] | None = None) -> None:
        """`diagnosis` is that of the study's fastest run, where it was just made."""
        self.source = source
        self._diagnosis = diagnosis
        self._preset: RestoredPreset | None = None
        self._trials: dict[int, Json] = {}
        self._best: tuple[int | None, Json] = (None, {})

    def object(self, view: StudyView | None = None) -> Json:
        """Return the study as it stands, or as it was seen, as text that a terminal can be given."""
        view = view or self.source.view()
        preset = self.preset(view)
        planned = preset.planned(view)
        expected = view.search.predictions
        trials = [self._trial(view, each, planned.get(each.number), expected.get(each.number)) for each in view.trials]
        capacity_bytes = _capacity_bytes(view, preset)
        needed = needed_memory(trials, capacity_bytes)
        trials = [{**trial, "needed": needed.get(trial["number"])} for trial in trials]
        with contextlib.suppress(*FROM_ANOTHER_RELEASE):  # no record keeps the point of the user's own command
            view.study.own_params = preset.preset.own_point(view.header.command) if preset.preset is not None else None
        of_best = self._of_best(view, planned)
        found = {
            "kind": "study",
            **_about(view, preset),
            **_outcome(view),
            "parameters": list(dict.fromkeys(name for each in view.trials for name in each.trial.params)),
            "capacity_bytes": capacity_bytes,
            "progress": best_so_far(view.study),
            "why_no_plan": preset.why_not,
            "diff": command_diff(view.header.command, view.best_command) if view.best_command else [],
            "trials": trials,
            "failures": failure_groups(trials),
            "standing": standing_object(view, preset, capacity_bytes),
            "steps": _steps(view, planned),
            **search_object(view),
            **of_best,
            "next": next_experiments(view, of_best["doctor"]),
        }
        shown: Json = printable(found)
        return shown

    def preset(self, view: StudyView) -> RestoredPreset:
        """Return the study's preset, made when it is first asked for."""
        if self._preset is None:
            self._preset = RestoredPreset(view.header, view.folder, view.search.cluster)
        return self._preset

    def _trial(
        self, view: StudyView, each: TrialView, planned: PlannedLayout | None, expected: Prediction | None
    ) -> Json:
        preset, snapshot = self.preset(view), self._trials.get(each.number)
        if snapshot is None or each.is_running:
            snapshot = _snapshot(each, preset.label(each), view.study.name_of(each.trial))
            if not each.is_running:
                self._trials[each.number] = snapshot
        # A strategy reports what it expected at its end, long after a trial's.
        predicted = predicted_object(planned, expected, preset.predicted(each))
        gain = None if each.is_running else view.study.row_gain(each.trial)
        return {**snapshot, "gain": gain, "predicted": predicted}

    def _of_best(self, view: StudyView, planned: dict[int, PlannedLayout]) -> Json:
        fastest, preset = view.study.fastest, self.preset(view)
        number = fastest.number if fastest else None
        if number is None or self._best[0] != number:
            lines: list[str] = []
            layout = planned.get(fastest.number) if fastest else None
            shown: Json | None = None
            if preset.planner is not None:
                with contextlib.suppress(*FROM_ANOTHER_RELEASE):
                    lines = _diagnosis(preset, view) if self._diagnosis is None else self._diagnosis
                with contextlib.suppress(*FROM_ANOTHER_RELEASE):
                    shown = best_layout_object(preset.planner, layout) if layout is not None else None
            self._best = (number, {"doctor": lines, "best_layout": shown})
        return self._best[1]


def _diagnosis(preset: RestoredPreset, view: StudyView) -> list[str]:
    if preset.preset is None or preset.planner is None:
        return []
    return study_diagnosis(preset.preset, view.header.command, view.study, preset.planner.calibration)


def _about(view: StudyView, preset: RestoredPreset) -> Json:
    """Return what a study is of, where it is kept and when it ran."""
    return {
        "made_by": f"zenithtune {__version__}",
        "title": f"{view.name} – study",
        "name": view.name,
        "header": {
            "preset": view.header.preset,
            "args": view.header.args,
            "resolved_args": resolved_args(preset),
            "command": view.header.command,
            "evaluator": view.header.evaluator,
        },
        "direction": str(view.direction),
        "unit": view.unit,
        "place": view.database or str(view.folder or ""),
        "now_s": time.time(),
        "started_s": view.started_s,
        "ended_s": view.ended_s,
        "is_running": bool(view.running),
        "num_unfinished": len(unfinished(view)),
    }


def _outcome(view: StudyView) -> Json:
    """Return the best, its gain, and how many trials ended in each way."""
    study, fastest = view.study, view.study.fastest
    ended = [each.trial for each in view.trials if not each.is_running and each.trial.is_searched]
    num_cancelled = sum(trial.outcome is Outcome.CANCELLED for trial in ended)
    return {
        "best": study.number_of(study.best) if study.best else None,
        "best_run": study.best.number if study.best else None,
        "best_reruns": study.reruns_of(study.best) if study.best else [],
        "baseline": study.baseline.number if study.baseline else None,
        "fastest_is_baseline": bool(fastest and fastest.is_baseline),
        "gain": finite(study.gain),
        "best_is_own": study.best_is_own,
        "is_within_noise": study.is_within_noise,
        "batch_note": batch_note(study),
        "noise": finite(study.gain_half_width),
        "num_failed": sum(not trial.ok for trial in ended) - num_cancelled,
        "num_cancelled": num_cancelled,
        "outcomes": {str(outcome): number for outcome, number in study.counts().items()},
        "num_pruned": view.num_pruned,
        "num_repeated": view.num_repeated,
        "best_command": command_to_copy(view.header.command, view.best_command) if view.best_command else None,
    }


def _capacity_bytes(view: StudyView, preset: RestoredPreset) -> float | None:
    """Return the memory of the planned cluster's GPU, or what a run that was out of memory said of it."""
    if preset.planner is not None:
        return float(preset.planner.cluster.gpu.memory_bytes)
    return reported_capacity(each.trial.cause for each in view.trials if each.trial.outcome is Outcome.OOM)


def _steps(view: StudyView, planned: Mapping[int, PlannedLayout]) -> list[Json]:
    """Return the steps of the user's own command and of the fastest trial by their parts; none without both.

    Parts are the phases that both measured, or else as planned.
    """
    own, best = view.study.baseline, view.study.fastest
    if own is None or best is None or own.number == best.number:
        return []
    is_measured = bool(own.phases and best.phases)
    steps: list[Json] = [
        {
            "name": name,
            "number": run.number,
            "parts_s": run.phases if is_measured else _planned_parts(run, planned.get(run.number)),
            "is_measured": is_measured,
        }
        for name, run in (("yours", own), ("best", best))
    ]
    return steps if all(step["parts_s"] for step in steps) else []


def _planned_parts(run: Trial, plan: PlannedLayout | None) -> dict[str, float]:
    if plan is None or not run.step_s:
        return {}
    return {part: seconds * run.step_s / plan.step_s for part, seconds in plan.time_parts.items() if seconds}


def failure_groups(trials: Iterable[Json]) -> list[Json]:
    """Return the trials that failed by what kind of failure it was, the most frequent first."""
    groups: dict[str, list[Json]] = {}
    for trial in trials:
        if trial["cause"] is not None and trial["value"] is None and trial["state"] != "running":
            groups.setdefault(trial["failure"] or trial["state"], []).append(trial)
    return [
        {
            "kind": kind,
            "numbers": [trial["number"] for trial in failed],
            "who": _who(failed),
            "causes": _causes(failed),
            "log": failed[0]["log"],
        }
        for kind, failed in sorted(groups.items(), key=lambda group: -len(group[1]))
    ]


def _who(failed: list[Json]) -> str:
    """Return how many failed, the user's own command apart from the trials, as it is everywhere else."""
    num_trials = sum(not trial["is_baseline"] for trial in failed)
    own = ["your command"] if num_trials < len(failed) else []
    return " and ".join([*own, *([count(num_trials, "trial")] if num_trials else [])])


def _causes(failed: list[Json]) -> list[Json]:
    """Return what was said, one for all that say the same but for their numbers."""
    alike: dict[str, Json] = {}
    for trial in failed:
        key = re.sub(r"[0-9]+(\.[0-9]+)?", "#", trial["cause"])
        alike.setdefault(key, {"text": trial["cause"], "numbers": []})["numbers"].append(trial["number"])
    return sorted(alike.values(), key=lambda cause: -len(cause["numbers"]))[:MAX_CAUSES]


def _snapshot(each: TrialView, label: str, name: str) -> Json:
    trial = each.trial
    went_well = trial.ok and not each.is_running
    return {
        "number": each.number,
        "name": name,
        "rerun_of": trial.rerun_of,
        "label": label,
        "state": each.state,
        "is_baseline": trial.is_baseline,
        "value": finite(trial.value),
        "spread": finite(trial.spread),
        "half_width": finite(trial.half_width),
        "step_s": finite(trial.step_s),
        "memory_bytes": finite(trial.peak_memory_bytes),
        "gpu_utilization": _measured(trial, UTILIZATION),
        "gpu_power_w": _measured(trial, POWER),
        "duration_s": finite(trial.duration_s),
        "start": trial.extra.get(START),
        "num_runs": trial.num_runs,
        "host": each.host,
        "started_s": each.started_s,
        "ended_s": each.ended_s,
        "early": trial.early,
        "failure": trial.failure,
        "cause": trial.cause,
        "why": trial.why,
        "command": trial.command or _written_command(each),
        "parameters": {name: str(value) if finite(value) is None else value for name, value in trial.params.items()},
        "folder": str(trial.folder) if trial.folder else None,
        "files": each.files(),
        "log": each.log_lines(LINES_OF_OTHERS if went_well else LINES_OF_FAILED),
    }


def _measured(trial: Trial, name: str) -> float | None:
    """Return another measurement of a trial, where it is a number."""
    value = trial.extra.get(name)
    return finite(float(value)) if isinstance(value, int | float) else None


def _written_command(each: TrialView) -> str:
    """Return the command that a trial which still runs has written down."""
    if each.trial.folder is None:
        return ""
    folder = TrialFolder(each.trial.folder)
    return folder.read(folder.command).partition("\n")[2].strip()
