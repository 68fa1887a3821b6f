"""A plan that what was measured speaks against: its model, or its cluster, cannot be the one of the run."""

from __future__ import annotations

from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.doctor.full_memory import full_memory_words
from zenith_tune.units import GIB, format_bytes

MOST_OFF = 0.5
"""By how much a measured step may differ from the planned one, as a fraction of it; no plan of the right model does."""
MODEL, CLUSTER = "model= the one that was trained", "--cluster the one that it ran on"


def plan_doubt(case: Case) -> str | None:
    """Return why the plan cannot be that of the run, or None where nothing measured says so."""
    step_s, planned = case.measured.step_s, case.planned
    if step_s is None or case.measured.out_of_memory:
        return None
    off = step_s / case.step_s(planned) - 1
    # A memory that was measured full makes a step longer than anybody can reckon.
    is_explained = off > 0 and case.measured.peak_bytes is not None and full_memory_words(case) is not None
    against = [f"is {abs(off):.0%} off"] if abs(off) > MOST_OFF and not is_explained else []
    # A run that a plan errs about by a little may well fit: only what no such error explains speaks against the plan.
    if planned.memory_interval_bytes[0] > planned.capacity_bytes:
        needed = f"{planned.memory_bytes / GIB:.1f} of {format_bytes(planned.capacity_bytes)}"
        against.append(f"needs {needed}, although the run went well")
    return f"the plan {' and '.join(against)}: is {_suspects(case)}?" if against else None


def _suspects(case: Case) -> str:
    """Return what the user said of the run, which may be mistaken; where nothing was said, what could be."""
    said = [words for words, name in ((MODEL, case.origin.model), (CLUSTER, case.origin.cluster)) if name]
    return ", and ".join(said or (MODEL, CLUSTER))
