"""The preset of a study, rebuilt from the study's header: it alone knows what a point is called and plans to take."""

from __future__ import annotations

import contextlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from zenith_tune.errors import UsageError, ZenithTuneError
from zenith_tune.record.view import StudyHeader, StudyView, TrialView
from zenith_tune.registry import construct
from zenith_tune.study.trial import YOUR_COMMAND

if TYPE_CHECKING:
    from zenith_tune.estimates.calibration import Calibration
    from zenith_tune.layouts.layout import Layout
    from zenith_tune.planner.plan import PlannedLayout
    from zenith_tune.planner.planner import Planner
    from zenith_tune.presets.parts import CompletePreset
    from zenith_tune.study.trial import Prediction

FROM_ANOTHER_RELEASE = (ArithmeticError, AttributeError, LookupError, OSError, TypeError, ValueError, ZenithTuneError)
"""What a preset may do with points that are not its own, or with files that are gone: it then has no answer."""
PRIOR = "prior.json"
"""The calibration that a guided study began with, in its folder."""
WORLD_RULES = ("world", "expert_world", "batch")
"""Rules without which nothing can be estimated."""


class RestoredPreset:
    """A study's preset, to name and predict its trials; answers are kept."""

    def __init__(self, header: StudyHeader, folder: Path | None = None, cluster: str = "") -> None:
        """Make it; `cluster` is the one that a study without that argument found by itself."""
        self.header = header
        self.why_not = ""
        """What keeps the planner from predicting anything; empty where it can."""
        self.preset: CompletePreset | None = None
        self.planner: Planner | None = None
        self._labels: dict[int, str] = {}
        self._planned: dict[int, PlannedLayout | None] = {}
        self._predicted: dict[int, Prediction | None] = {}
        try:
            self.preset = _made(header, cluster)
            self.planner = _planner(self.preset, header.command, folder)
        except FROM_ANOTHER_RELEASE as error:
            self.why_not = str(error) or type(error).__name__
        if self.planner is None:
            from zenith_tune.presets.parts import Planned

            plans = self.preset is not None and type(self.preset).predicted is not Planned.predicted
            other = "plans by itself, without the memory of each stage" if plans else "makes no plans"
            self.why_not = self.why_not or f"preset {header.preset} {other}"

    def label(self, view: TrialView) -> str:
        if view.label or view.trial.is_baseline:
            return view.label or YOUR_COMMAND + view.trial.mark
        if view.number not in self._labels:
            params = view.trial.params
            label = " ".join(f"{name}={value}" for name, value in params.items())
            if self.preset is not None:
                with contextlib.suppress(*FROM_ANOTHER_RELEASE):
                    label = self.preset.label(params)
            self._labels[view.number] = label
        return self._labels[view.number]

    def layout(self, view: TrialView) -> Layout | None:
        if self.preset is None or self.planner is None:
            return None
        from zenith_tune.layouts.rules import broken_rules

        command = self.header.command
        try:
            point = view.trial.params or self.preset.own_point(command)
            layout = self.preset.planned_layout(command, point) if point else None
            if layout is None:
                return None
            broken = broken_rules(self.planner.model, self.planner.job, layout)
        except FROM_ANOTHER_RELEASE:
            return None
        return None if any(rule.name in WORLD_RULES for rule, _ in broken) else layout

    def planned(self, study: StudyView) -> dict[int, PlannedLayout]:
        """Return what the planner says of the trials, by number; nothing of those it cannot estimate."""
        if self.planner is None:
            return {}
        new = [view for view in study.trials if view.number not in self._planned]
        layouts = {view.number: self.layout(view) for view in new}
        known = {number: layout for number, layout in layouts.items() if layout is not None}
        self._planned |= dict.fromkeys(layouts)
        self._planned |= dict(zip(known, self.planner.evaluate(list(known.values())), strict=True))
        return {number: planned for number, planned in self._planned.items() if planned is not None}

    def predicted(self, view: TrialView) -> Prediction | None:
        """Return what the preset by itself says of a trial, where it plans without the planner."""
        if self.preset is None:
            return None
        if view.number not in self._predicted:
            try:
                point = view.trial.params or self.preset.own_point(self.header.command)
                self._predicted[view.number] = self.preset.predicted(point) if point else None
            except FROM_ANOTHER_RELEASE:
                self._predicted[view.number] = None
        return self._predicted[view.number]


def _made(header: StudyHeader, cluster: str) -> CompletePreset:
    from zenith_tune.describe.cluster_catalog import names_catalog_cluster
    from zenith_tune.presets.base import PresetRegistry
    from zenith_tune.presets.parts import completed

    kind, args = PresetRegistry.get(header.preset), dict(header.args)
    if names_catalog_cluster(cluster) and "cluster" in inspect.signature(kind).parameters:
        args.setdefault("cluster", cluster)
    preset = completed(construct(kind, args, f"preset {header.preset}"))
    preset.bind(header.command)
    return preset


def _planner(preset: CompletePreset, command: str, folder: Path | None) -> Planner | None:
    subject = preset.subject(command)
    if subject is None:
        return None
    from zenith_tune.planner.planner import Planner

    return Planner(subject.model, subject.cluster, subject.job, study_calibration(folder))


def study_calibration(folder: Path | None) -> Calibration | None:
    """Return the calibration that a study began with; None where the package's own is the one to use."""
    if folder is None or not (folder / PRIOR).is_file():
        return None
    from zenith_tune.calibrate.calibration_file import load_calibration

    with contextlib.suppress(UsageError):  # of another release, or cut off: the package's own will do
        return load_calibration(folder / PRIOR)
    return None
