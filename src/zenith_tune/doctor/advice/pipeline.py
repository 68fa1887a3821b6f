"""Stages of a pipeline that wait for one another.

Legend: p stages, m micro-batches, v chunks per stage. Of a step of one-forward-one-backward, (p-1)/(m+p-1) is spent
waiting; interleaving makes it (p-1)/(vm+p-1) (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters", SC 2021, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.doctor.diagnosis_input import LEAST_GAIN, Advice, DiagnosisInput
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.planner.limits import MAX_BATCH
from zenith_tune.planner.plan import changes

LEAST_SHARE = 0.1


def bubble_share(*, p: int, m: int, v: int = 1) -> float:
    """Return the share of a step in which a stage waits.

    >>> bubble_share(p=4, m=4), bubble_share(p=4, m=4, v=3), bubble_share(p=1, m=8)
    (0.42857142857142855, 0.2, 0.0)
    """
    return (p - 1) / (v * m + p - 1)


def pipeline_bubble(case: DiagnosisInput) -> Advice | None:
    """Return what makes the bubble smaller, where it is a tenth of a step or more."""
    at = case.layout
    m = at.num_micro_batches
    share = bubble_share(p=at.pp, m=m, v=at.vp)
    if share < LEAST_SHARE:
        return None
    better, caution = case.fastest(_smaller(case)), ""
    if better is None or case.gain(better) < LEAST_GAIN:
        better = case.fastest(_larger_batches(at))
        caution = "a larger global batch is another training: its learning rate has to follow"
    if better is None or case.gain(better) < LEAST_GAIN:
        return None
    stages = f"{at.pp} stages of {at.vp} chunks" if at.vp > 1 else f"{at.pp} stages"
    planned = case.planned.time_parts["bubble"] / case.planned.step_s
    beside = f"the plan's {planned:.0%} has uneven stages and the rest of the step in it"
    formula = "(p-1)/(vm+p-1)" if at.vp > 1 else "(p-1)/(m+p-1)"
    return Advice(
        name="pipeline_bubble",
        number=share,
        unit="share of a step",
        finding=f"{share:.0%} of a step is pipeline bubble: {formula} with {stages} and {m} micro-batches; {beside}",
        change=changes(at, better.layout),
        planned=better,
        gain=case.gain(better),
        caution=caution,
    )


def _smaller(case: DiagnosisInput) -> Iterator[Layout]:
    """Yield fewer stages, more chunks and more micro-batches of the same global batch."""
    at, num_layers = case.layout, case.planner.model.num_layers
    for mbs in divisors(at.micro_batch):
        yield replace(at, micro_batch=mbs)
        for vp in range(at.vp, num_layers // at.pp + 1):
            chunk = layers_per_chunk(num_layers, pp=at.pp, vp=vp)
            if at.recompute != "full/block" or at.recompute_layers <= chunk:
                yield replace(at, micro_batch=mbs, vp=vp)
        for pp in divisors(at.pp)[:-1]:
            yield replace(at, micro_batch=mbs, pp=pp, vp=1)
            if pp > 1:
                yield replace(at, micro_batch=mbs, pp=pp)


def _larger_batches(at: Layout) -> Iterator[Layout]:
    if at.global_batch * 2 <= MAX_BATCH:
        yield replace(at, global_batch=at.global_batch * 2)
