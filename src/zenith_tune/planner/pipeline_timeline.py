"""The timeline of a pipeline's stages in one step: 1F1B, or interleaved where a rank has several chunks.

Legend: p stages, v chunks per stage, m micro-batches; the order of work is that of Megatron Core's schedules
(Narayanan et al. 2021, figures 3 and 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.estimates.step import known_numbers
from zenith_tune.estimates.time import FORWARD, stage_time
from zenith_tune.layouts.layout import SCHEDULES, Layout
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.planner.plan import PlannedLayout

MOST_SHOWN = 12
"""Micro-batches of a timeline, unless its stages need more to be busy."""
ONCE = ("dp", "optimizer")
"""Parts of a step that come after the last micro-batch."""

Work = tuple[bool, int, int]
"""Whether it is a forward pass, its chunk, and its micro-batch."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One pass of one micro-batch through one chunk."""

    stage: int
    chunk: int
    micro_batch: int
    is_forward: bool
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimeline:
    """The passes of one step."""

    num_stages: int
    num_chunks: int
    num_micro_batches: int
    shown_micro_batches: int
    """Number of micro-batches drawn: of a long step only the first, as if there were no others."""
    bars: tuple[Bar, ...]
    tail_s: float
    """Seconds of gradients and optimizer after the last pass."""
    idle_share: float
    """Mean share of the drawn time that stages wait."""


def pipeline_timeline(
    subject: PlanSubject, calibration: Calibration, planned: PlannedLayout
) -> PipelineTimeline | None:
    """Return the timeline of a planned step, scaled to its estimate; None without a pipeline or for another one."""
    layout = planned.layout
    if layout.pp == 1 or layout.schedule != SCHEDULES[0]:
        return None
    forward, backward = _pass_times(subject, calibration, layout)
    shown = _shown(layout)
    bars = simulate(forward, backward, chunks=layout.vp, micro_batches=shown)
    if not bars:
        return None
    end_s = max(bar.end_s for bar in bars)
    once_s = sum(planned.time_parts.get(name, 0.0) for name in ONCE)
    # Messages and waits stretch every pass alike, so that the step takes as long as estimated.
    scale = (planned.step_s - once_s) / end_s if shown == layout.num_micro_batches else 1.0
    busy_s = sum(bar.end_s - bar.start_s for bar in bars)
    return PipelineTimeline(
        num_stages=layout.pp,
        num_chunks=layout.vp,
        num_micro_batches=layout.num_micro_batches,
        shown_micro_batches=shown,
        bars=tuple(replace(bar, start_s=bar.start_s * scale, end_s=bar.end_s * scale) for bar in bars),
        tail_s=once_s,
        idle_share=1 - busy_s / (end_s * layout.pp),
    )


def simulate(forward_s: Sequence[float], backward_s: Sequence[float], *, chunks: int, micro_batches: int) -> list[Bar]:
    """Run every stage's passes in order, each as soon as its inputs are ready; return nothing if they would hang."""
    p = len(forward_s)
    plans = [_order(p, stage, chunks, micro_batches) for stage in range(p)]
    done, free_s = [0] * p, [0.0] * p
    ended: dict[tuple[bool, int, int], float] = {}
    bars: list[Bar] = []
    while len(bars) < sum(map(len, plans)):
        before = len(bars)
        for stage in range(p):
            while done[stage] < len(plans[stage]):
                is_forward, chunk, micro_batch = plans[stage][done[stage]]
                place = chunk * p + stage
                ready_s = _ready(ended, is_forward, place, p * chunks, micro_batch)
                if ready_s is None:
                    break
                start_s = max(ready_s, free_s[stage])
                seconds = (forward_s if is_forward else backward_s)[stage] / chunks
                free_s[stage] = ended[is_forward, place, micro_batch] = start_s + seconds
                bars.append(Bar(stage, chunk, micro_batch, is_forward, start_s, start_s + seconds))
                done[stage] += 1
        if len(bars) == before:
            return []
    return sorted(bars, key=lambda bar: (bar.start_s, bar.stage))


def _ready(ended: dict[Work, float], is_forward: bool, place: int, places: int, micro_batch: int) -> float | None:
    """Return when the inputs of a pass are ready; None while they are not."""
    if is_forward:
        return 0.0 if place == 0 else ended.get((True, place - 1, micro_batch))
    is_last = place == places - 1
    return ended.get((True, place, micro_batch) if is_last else (False, place + 1, micro_batch))


def _order(p: int, stage: int, v: int, m: int) -> list[Work]:
    """Return the passes of a stage in order: a warm-up of forward passes, then one of each, then the rest."""
    forward = [(True, *_turn(k, p, v)) for k in range(m * v)]
    backward = [(False, v - 1 - chunk, micro_batch) for chunk, micro_batch in (_turn(k, p, v) for k in range(m * v))]
    warm_up = min(p - stage - 1 if v == 1 else 2 * (p - stage - 1) + (v - 1) * p, m * v)
    steady = [work for pair in zip(forward[warm_up:], backward, strict=False) for work in pair]
    return [*forward[:warm_up], *steady, *backward[m * v - warm_up :]]


def _turn(k: int, p: int, v: int) -> tuple[int, int]:
    """Return chunk and micro-batch of a stage's k-th pass: interleaved, p micro-batches per chunk in turn."""
    return (0, k) if v == 1 else (k % (p * v) // p, k // (p * v) * p + k % p)


def _shown(layout: Layout) -> int:
    shown = min(layout.num_micro_batches, max(MOST_SHOWN, 2 * layout.pp if layout.vp == 1 else layout.pp))
    return shown if layout.vp == 1 or shown < layout.pp else shown - shown % layout.pp


def _pass_times(subject: PlanSubject, calibration: Calibration, layout: Layout) -> tuple[list[float], list[float]]:
    """Return the seconds of a forward and of a backward pass of one micro-batch through each stage."""
    whole = _micro_batch_times(subject, calibration, layout)
    plain = _micro_batch_times(subject, calibration, replace(layout, recompute="none", recompute_layers=0))
    forward = [FORWARD * seconds for seconds in plain]
    return forward, [seconds - first for seconds, first in zip(whole, forward, strict=True)]


def _micro_batch_times(subject: PlanSubject, calibration: Calibration, layout: Layout) -> list[float]:
    """Return the seconds of one micro-batch on each stage, from what a batch twice as large adds to a step."""
    workload, machine, coefficients = known_numbers(subject.model, subject.cluster, subject.job, calibration)
    ranks = np.arange(layout.pp, dtype=np.float64)
    batches = (replace(layout, global_batch=layout.global_batch * n) for n in (1, 2))
    once, twice = (
        stage_time(workload, machine, batch_of([each] * layout.pp), subject.job.framework, coefficients, ranks).step_s
        for each in batches
    )
    return [float(seconds) / layout.num_micro_batches for seconds in twice - once]
