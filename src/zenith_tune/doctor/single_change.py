"""The single change that makes a run faster, whatever it is that is slow."""

from __future__ import annotations

from zenith_tune.doctor.advice import Advice
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.planner.neighbours import neighbours
from zenith_tune.planning.changes import changes
from zenith_tune.planning.planned_layout import PlannedLayout

LEAST_GAIN = 0.05
"""More than for what has a cause of its own: a plan is not so sure of a rank of layouts."""


def fastest_neighbour(case: Case) -> PlannedLayout | None:
    """Return the fastest layout that fits among those one change away."""
    around = neighbours(case.planner.model, case.planner.job, case.layout, case.space)
    return max((each for each in case.legal(around) if case.fits(each)), key=case.gain, default=None)


def single_change(case: Case) -> Advice | None:
    """Return it, where it is worth a try."""
    better = fastest_neighbour(case)
    if better is None or case.gain(better) < LEAST_GAIN:
        return None
    return Advice(
        name="single_change",
        number=case.step_s(better),
        unit="seconds a step",
        finding=f"the step ({case.planned.bound}) is predicted to be shorter with one size changed",
        change=changes(case.layout, better.layout),
        planned=better,
        gain=case.gain(better),
    )
