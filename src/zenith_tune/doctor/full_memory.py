"""Memory so full that the allocator frees and claims blocks again and again: the run goes on, many times slower."""

from __future__ import annotations

from zenith_tune.doctor.advice import LEAST_GAIN, Advice
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.planner.neighbours import neighbours
from zenith_tune.planning.changes import changes
from zenith_tune.units import GIB, format_bytes

LEAST_SLOWDOWN = 1.05
ENOUGH_SAVED = 0.97
"""What a change may leave of the memory that the run needs, at most: less is no relief."""


def full_memory_words(case: Case) -> str | None:
    """Return how full the memory is and what that costs, where it is all but full."""
    longer = case.slowdown(case.device_bytes)
    if longer < LEAST_SLOWDOWN:
        return None
    capacity = case.planned.capacity_bytes
    size = f"{case.device_bytes / GIB:.1f} of {format_bytes(capacity)}"
    how = "measured" if case.measured.peak_bytes is not None else "planned"
    thrash = (
        f"the allocator frees and claims blocks in every step, which is reckoned to take {longer:.1f} times as long"
    )
    return f"the memory is {case.device_bytes / capacity:.1%} full ({size}, {how}): {thrash}"


def full_memory(case: Case) -> Advice | None:
    """Return the change that leaves room at the least cost, where the memory is all but full."""
    finding = full_memory_words(case)
    if finding is None:
        return None
    around = neighbours(case.planner.model, case.planner.job, case.layout, case.space)
    roomy = [planned for planned in case.legal(around) if case.fits(planned)]
    roomy = [planned for planned in roomy if planned.memory_bytes <= ENOUGH_SAVED * case.planned.memory_bytes]
    better = max(roomy, key=case.gain, default=None)
    if better is None or case.gain(better) < LEAST_GAIN:
        return None
    return Advice(
        name="full_memory",
        number=case.device_bytes / case.planned.capacity_bytes,
        unit="share of the GPU's memory",
        finding=finding,
        change=changes(case.layout, better.layout),
        planned=better,
        gain=case.gain(better),
    )
