"""A plan that what was measured speaks against: its model, or its cluster, cannot be the one of the run."""

from __future__ import annotations

from zenith_tune.doctor.case import Case
from zenith_tune.units import GIB, format_bytes

MOST_OFF = 0.5
"""By how much a measured step may differ from the planned one, as a fraction of it; no plan of the right model does."""


def plan_doubt(case: Case) -> str | None:
    """Return why the plan cannot be that of the run, or None where nothing measured says so."""
    step_s, planned = case.measured.step_s, case.planned
    if step_s is None or case.measured.out_of_memory:
        return None
    off = step_s / case.step_s(planned) - 1
    against = [f"is {abs(off):.0%} off"] if abs(off) > MOST_OFF else []
    if planned.memory_bytes > planned.capacity_bytes:
        needed = f"{planned.memory_bytes / GIB:.1f} of {format_bytes(planned.capacity_bytes)}"
        against.append(f"needs {needed}, although the run went well")
    return f"the plan {' and '.join(against)}: is model= the one that was trained?" if against else None
