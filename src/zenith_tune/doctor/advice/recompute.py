"""Recomputation of whole layers on GPUs that have the memory to keep them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.doctor.advice import LEAST_GAIN, Advice
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.layouts.divisors import divisors
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.planning.changes import changes
from zenith_tune.units import format_bytes


def needless_recompute(case: Case) -> Advice | None:
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


def _less(case: Case, at: Layout) -> Iterator[Layout]:
    yield replace(at, recompute="none", recompute_layers=0)
    chunk = layers_per_chunk(case.planner.model.num_layers, pp=at.pp, vp=at.vp)
    most = at.recompute_layers if at.recompute == "full/block" else chunk
    for layers in range(1, most):
        yield replace(at, recompute="full/block", recompute_layers=layers)
