"""The diagnosis of a run, with a plan or without one."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.doctor.causes.cause import Cause
from zenith_tune.doctor.diagnosed_run import Measured, UnplannedRun
from zenith_tune.doctor.diagnosis import Diagnosis
from zenith_tune.doctor.diagnosis_input import Advice, Remedy
from zenith_tune.doctor.published_gap import NotCompared, SpeedGap
from zenith_tune.report.doctor import (
    diagnosis_html,
    diagnosis_object,
    gap_lines,
    gap_object,
    report_lines,
    unplanned_lines,
    unplanned_object,
)
from zenith_tune.study.files import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiagnosis:
    """A diagnosis; without a plan it has only the causes that the log shows."""

    what: str
    found: Diagnosis | UnplannedRun
    """The diagnosis by the plan, or why there is no plan."""
    tensor_reason: str = ""
    """How large the links of the nodes let tensor parallelism be, where they were looked at."""
    cluster_reason: str = ""
    """Why it is planned for fewer GPUs than the named cluster has; empty where it is not."""
    gap: SpeedGap | NotCompared | None = None
    """The run against the nearest published one, where that was asked for."""

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis by the planner's estimates; None where model, cluster or layout are not known."""
        return self.found if isinstance(self.found, Diagnosis) else None

    @property
    def not_planned(self) -> str:
        """Why there is no plan, and how to have one; empty where there is."""
        return self.found.reason if isinstance(self.found, UnplannedRun) else ""

    @property
    def measured(self) -> Measured:
        """What a log or a trial says of the run."""
        return self.found.run.measured if isinstance(self.found, Diagnosis) else self.found.measured

    @property
    def causes(self) -> tuple[Cause, ...]:
        """What ended the run or keeps it waiting."""
        return self.found.causes if isinstance(self.found, Diagnosis) else self.measured.causes

    @property
    def advice(self) -> tuple[Advice, ...]:
        """Changes that make it faster, the largest gain first."""
        return self.diagnosis.advice if self.diagnosis else ()

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        """Changes that make it fit, where it does not."""
        return self.diagnosis.remedies if self.diagnosis else ()

    @property
    def is_sound(self) -> bool:
        """Whether the run trains, or would after a change."""
        return self.measured.is_sound and (self.diagnosis is None or self.diagnosis.can_train)

    def as_json(self) -> Json:
        """Return it as plain values, as `zenithtune doctor --json` prints them."""
        found = self.found
        shown = unplanned_object(found) if isinstance(found, UnplannedRun) else diagnosis_object(found)
        against = {"against": gap_object(self.gap)} if self.gap else {}
        because = {"tensor_parallel_reason": self.tensor_reason, "cluster_reason": self.cluster_reason}
        return {"run": self.what, **shown, **{name: reason for name, reason in because.items() if reason}, **against}

    @property
    def _notes(self) -> list[str]:
        return [f"note: {reason}" for reason in (self.cluster_reason, self.tensor_reason) if reason]

    def __str__(self) -> str:
        """Return what `zenithtune doctor` prints."""
        found = self.found
        lines = unplanned_lines(found) if isinstance(found, UnplannedRun) else report_lines(found, self.what)
        return "\n".join([*self._notes, *lines, *(gap_lines(self.gap) if self.gap else ())])

    def _repr_html_(self) -> str:
        return diagnosis_html(self.found, self.what, [*(gap_lines(self.gap) if self.gap else ()), *self._notes])

    def __repr__(self) -> str:
        changes = len(self.advice) + len(self.remedies)
        planned = f" of {self.diagnosis.run.planned.name}" if self.diagnosis else ", not planned"
        return f"RunDiagnosis({self.what}{planned}: {len(self.causes)} causes, {changes} changes to look at)"
