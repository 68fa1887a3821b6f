"""Recomputation of whole layers on GPUs that have the memory to keep them.

Selective recomputation of the core of attention beside flash attention, which keeps none of it anyhow.

Megatron-LM warns of it; in its issue 1225 selective recomputation saved 0.6 of 25 GB.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.doctor.diagnosis_input import LEAST_GAIN, Advice, DiagnosisInput
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.planner.plan import changes
from zenith_tune.units import format_bytes


def needless_recompute(case: DiagnosisInput) -> Advice | None:
    """Return how little recomputation does, where all of it is not needed."""
    at = case.layout
    if not at.recompute.startswith("full"):
        return None
    better = case.fastest(_less(case, at))
    if better is None or case.gain(better) < LEAST_GAIN:
        # Smaller micro-batches keep less: what they lose may be less than what recomputation takes.
        smaller = (replace(at, micro_batch=size) for size in divisors(at.micro_batch)[:-1])
        better = case.fastest(layout for less in smaller for layout in _less(case, less))
    if better is None or case.gain(better) < LEAST_GAIN:
        return None
    share = case.planned.time_parts["recompute"] / case.planned.step_s
    left = format_bytes(case.planned.capacity_bytes - case.device_bytes)
    return Advice(
        name="needless_recompute",
        number=share,
        unit="share of a step",
        finding=f"{share:.0%} of a step recomputes layers, while {left} of each GPU's memory are left",
        change=changes(at, better.layout),
        planned=better,
        gain=case.gain(better),
    )


def _less(case: DiagnosisInput, at: Layout) -> Iterator[Layout]:
    yield replace(at, recompute="none", recompute_layers=0)
    chunk = layers_per_chunk(case.planner.model.num_layers, pp=at.pp, vp=at.vp)
    most = at.recompute_layers if at.recompute == "full/block" else chunk
    for layers in range(1, most):
        yield replace(at, recompute="full/block", recompute_layers=layers)


CORE = "core_attn"
LEAST_SAVED = 0.03
"""Of the GPU's memory: recomputation that frees this much or more is not idle."""
LEAST_FREE_GAIN = 0.003


def idle_recompute(case: DiagnosisInput) -> Advice | None:
    """Return what leaving it out brings."""
    at = case.layout
    modules = case.recompute_modules or (CORE,)
    own_meaning = case.planner.job.framework.selective_share  # frameworks whose "selective" is not that of Megatron
    if at.recompute != "selective" or not at.flash_attention or own_meaning or modules != (CORE,):
        return None
    (better,) = case.planner.evaluate([replace(at, recompute="none")])
    saved = better.memory_bytes - case.planned.memory_bytes
    if not case.fits(better) or saved >= LEAST_SAVED * better.capacity_bytes or case.gain(better) < LEAST_FREE_GAIN:
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
