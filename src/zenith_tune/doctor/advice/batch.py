"""A micro-batch that is too small to keep a GPU busy: weights are read for few tokens, and launches count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from zenith_tune.doctor.diagnosis_input import LEAST_GAIN, Advice, DiagnosisInput
from zenith_tune.layouts.layout import divisors
from zenith_tune.planner.plan import PlannedLayout, changes

LEAST_SAVING = 0.03
"""Work that a larger micro-batch must save to be the cause of what it gains."""
ALL_BUT = 0.01


def small_micro_batch(case: DiagnosisInput) -> Advice | None:
    """Return the micro-batch that fills the GPU, where that makes a step shorter as a whole."""
    at = case.layout
    sizes = [size for size in divisors(at.global_batch // at.dp) if size > at.micro_batch]
    fitting = [each for each in case.legal(replace(at, micro_batch=size) for size in sizes) if case.fits(each)]
    best = max((case.gain(each) for each in fitting), default=0.0)
    # The smallest that is all but as fast: what is larger takes memory for nothing.
    better = next((each for each in fitting if case.gain(each) >= best - ALL_BUT), None)
    if better is None or case.gain(better) < LEAST_GAIN:
        return None
    saved = 1 - _work_s(better) / _work_s(case.planned)
    if saved < LEAST_SAVING:
        return None
    tokens = at.micro_batch * case.planner.job.seq_len // at.cp
    size = f"a micro-batch of {at.micro_batch} ({tokens:,} tokens on each of {at.tp} tensor-parallel ranks)"
    if at.tp == 1:
        size = f"a micro-batch of {at.micro_batch} ({tokens:,} tokens)"
    return Advice(
        name="small_micro_batch",
        number=saved,
        unit="share of the work",
        finding=f"{size} does not fill the GPU: the same work takes {saved:.0%} less at {better.layout.micro_batch}",
        change=changes(at, better.layout),
        planned=better,
        gain=case.gain(better),
    )


def _work_s(planned: PlannedLayout) -> float:
    """Return the seconds of a step that are work, and not waiting or sending."""
    return sum(planned.time_parts.get(name, 0.0) for name in ("compute", "recompute", "overhead"))


IMPLICIT_DEFAULT = "implicit_default"


def implicit_default(case: DiagnosisInput) -> Iterator[Advice]:
    """Yield what saying the size brings, whatever its sign: the run is not the one that was meant."""
    for unasked in case.origin.unasked:
        change: dict[str, Any] = {unasked.name: unasked.meant}
        for meant in case.legal([replace(case.layout, **change)]):
            if case.fits(meant):
                yield Advice(
                    name=IMPLICIT_DEFAULT,
                    number=float(unasked.size),
                    unit="ranks",
                    finding=unasked.finding,
                    change=f"{changes(case.layout, meant.layout)}: {unasked.hint}",
                    planned=meant,
                    gain=case.gain(meant),
                )


def implicit_default_lines(case: DiagnosisInput) -> Iterator[str]:
    """Yield the same where no plan stands behind it."""
    yield from (f"{unasked.finding}: {unasked.hint}" for unasked in case.origin.unasked)
