"""What is wrong with a run: every advice that applies, the one with the largest gain first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from zenith_tune.doctor.advice import Advice, Remedy
from zenith_tune.doctor.advice.batch import small_micro_batch
from zenith_tune.doctor.advice.better_layout import better_layout, fastest_planned
from zenith_tune.doctor.advice.memory import remedies
from zenith_tune.doctor.advice.network import slow_tensor_link
from zenith_tune.doctor.advice.pipeline import pipeline_bubble
from zenith_tune.doctor.advice.recompute import needless_recompute
from zenith_tune.doctor.data_parallel_traffic import data_parallel_traffic
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.doctor.full_memory import full_memory, full_memory_words
from zenith_tune.doctor.idle_recompute import idle_recompute
from zenith_tune.doctor.plan_doubt import plan_doubt
from zenith_tune.doctor.single_change import fastest_neighbour, single_change
from zenith_tune.doctor.unasked_size import UNASKED, unasked_size, unasked_words
from zenith_tune.planning.planned_layout import PlannedLayout
from zenith_tune.units import format_gain

ADVICE: tuple[Callable[[Case], Advice | None], ...] = (
    full_memory,
    slow_tensor_link,
    pipeline_bubble,
    small_micro_batch,
    data_parallel_traffic,
    idle_recompute,
    needless_recompute,
)
"""Each looks for a cause of its own; a change without one is named only where none of them has anything to say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Hold what was found."""

    case: Case
    advice: tuple[Advice, ...]
    remedies: tuple[Remedy, ...]
    """Of a run that does not fit."""
    way_out: PlannedLayout | None = None
    """The fastest layout of all that fits, where no single change makes the run fit."""
    warnings: tuple[str, ...] = ()
    """What is wrong without a change that would better it, in a line each."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong that a change would better."""
        return not self.advice and not self.remedies and not self.warnings

    @property
    def all_clear(self) -> str:
        """Return the figures that show that nothing is wrong, in one line."""
        case, at, parts = self.case, self.case.layout, self.case.planned.time_parts
        best = fastest_neighbour(case)
        gain = format_gain(max(case.gain(best), 0.0)) if best is not None else "+0.0%"
        figures = [f"compute {parts['compute'] / case.planned.step_s:.0%} of a step"]
        if at.pp > 1:
            figures.append(f"bubble {parts['bubble'] / case.planned.step_s:.0%}")
        if at.tp > 1:
            figures.append(f"TP {parts['tp'] / case.planned.step_s:.0%}")
        if at.dp > 1:
            figures.append(f"DP {parts['dp'] / case.planned.step_s:.0%}")
        figures.append(f"memory {case.device_bytes / case.planned.capacity_bytes:.0%} full")
        return f"{', '.join(figures)}; the best single change is predicted to bring {gain}"


def diagnose(case: Case) -> Diagnosis:
    """Look for everything that limits a run."""
    if not case.runs:
        found = remedies(case)
        way_out = None if any(remedy.fits for remedy in found) else fastest_planned(case)
        warnings = tuple(unasked_words(case))
        return Diagnosis(case=case, advice=(), remedies=found, way_out=way_out, warnings=warnings)
    if (doubt := plan_doubt(case)) is not None:
        # What rests on a plan that is not the run's is no advice.
        return Diagnosis(case=case, advice=(), remedies=(), warnings=(doubt, *unasked_words(case)))
    advice = _advice(case)
    return Diagnosis(case=case, advice=tuple(advice), remedies=(), warnings=tuple(_warnings(case, advice)))


def _advice(case: Case) -> list[Advice]:
    """Return what applies, the largest gain first, but for sizes that nobody asked for: they spoil all the rest."""
    found = [given for look in ADVICE if (given := look(case)) is not None]
    if not found and (given := single_change(case)) is not None:
        found.append(given)
    most = max((given.gain for given in found), default=0.0)
    if (given := better_layout(case, over=most)) is not None:
        found.append(given)
    return [*unasked_size(case), *sorted(found, key=lambda given: -given.gain)]


def _warnings(case: Case, advice: list[Advice]) -> Iterator[str]:
    if not any(given.name == UNASKED for given in advice):
        yield from unasked_words(case)
    if (full := full_memory_words(case)) is not None and not any(given.name == "full_memory" for given in advice):
        yield f"{full}; no single change leaves room and gains: more GPUs would"
