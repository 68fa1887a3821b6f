"""Selective recomputation of the core of attention beside flash attention, which keeps none of it anyhow.

Megatron-LM warns of it; in its issue 1225 selective recomputation saved 0.6 of 25 GB.
"""

from __future__ import annotations

from dataclasses import replace

from zenith_tune.doctor.advice import Advice
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.planning.changes import changes
from zenith_tune.units import format_bytes

CORE = "core_attn"
LEAST_SAVED = 0.03
"""Of the GPU's memory: recomputation that frees this much or more is not idle."""
LEAST_GAIN = 0.003


def idle_recompute(case: Case) -> Advice | None:
    """Return what leaving it out brings."""
    at = case.layout
    modules = case.recompute_modules or (CORE,)
    own_meaning = case.planner.job.framework.selective_share  # frameworks whose "selective" is not that of Megatron
    if at.recompute != "selective" or not at.flash_attention or own_meaning or modules != (CORE,):
        return None
    (better,) = case.planner.evaluate([replace(at, recompute="none")])
    saved = better.memory_bytes - case.planned.memory_bytes
    if not case.fits(better) or saved >= LEAST_SAVED * better.capacity_bytes or case.gain(better) < LEAST_GAIN:
        return None
    share = case.planned.time_parts["recompute"] / case.planned.step_s
    what = f"{share:.1%} of a step recomputes the core of attention"
    return Advice(
        name="idle_recompute",
        number=max(saved, 0.0),
        unit="bytes saved",
        finding=f"{what} and saves {format_bytes(max(saved, 0.0))}: flash attention keeps none of it anyhow",
        change=changes(at, better.layout),
        planned=better,
        gain=case.gain(better),
    )
