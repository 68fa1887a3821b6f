"""The layouts one step away from a layout: one size changed, the others kept, data parallelism making up for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.layout import Layout, divisors, short_values
from zenith_tune.layouts.pipeline import is_even, layers_per_chunk
from zenith_tune.layouts.rules import broken_rules
from zenith_tune.layouts.search_space import SearchSpace, limits_of
from zenith_tune.planner.plan import NearMiss, Obstacle, PlannedLayout, changes
from zenith_tune.units import format_bytes, format_gain, format_seconds

SIZES = ("tp", "pp", "cp", "ep", "etp")


def neighbours(model: ModelSpec, job: JobSpec, layout: Layout, space: SearchSpace | None = None) -> list[Layout]:
    """Return every legal layout one step away that a space has."""
    inside = space or SearchSpace()
    steps = set(_sizes(layout))
    chunk = layers_per_chunk(model.num_layers, pp=layout.pp, vp=layout.vp)
    recompute = [("none", 0), ("selective", 0), ("full/uniform", 1), *(("full/block", n) for n in range(1, chunk))]
    steps |= {replace(layout, recompute=kind, recompute_layers=number) for kind, number in recompute}
    if layout.pp > 1:
        steps |= {replace(layout, vp=vp) for vp in range(1, model.num_layers // layout.pp + 1)}
        steps |= {replace(layout, schedule=name) for name in limits_of(job.framework.name).schedules}
    steps |= {replace(layout, micro_batch=size) for size in _adjacent(layout.micro_batch, layout.global_batch)}
    steps |= {replace(layout, zero=stage) for stage in limits_of(job.framework.name).zero_stages}
    steps |= {replace(layout, sequence_parallel=not layout.sequence_parallel)}
    legal = [_fitted(model, step) for step in steps - {layout}]
    return sorted(
        {step for step in legal if is_inside(inside, model, step) and not broken_rules(model, job, step)} - {layout},
        key=str,
    )


def is_inside(space: SearchSpace, model: ModelSpec, layout: Layout) -> bool:
    """Tell whether a layout is within the bounds, the given values and the splits of a space."""
    is_cut = space.uneven_splits or is_even(model.num_layers, pp=layout.pp, vp=layout.vp)
    is_kept = layout.recompute in space.recompute
    return is_cut and is_kept and all(space.allows(name, value) for name, value in short_values(layout).items())


def _sizes(layout: Layout) -> Iterator[Layout]:
    for name in SIZES:
        for size in _adjacent(getattr(layout, name), layout.num_gpus):
            change: dict[str, Any] = {name: size}
            changed = replace(layout, **change)
            if layout.num_gpus % (changed.tp * changed.pp * changed.cp) == 0:
                # Sequence parallelism needs tensor parallelism, and comes with the first of it.
                keeps = changed.tp > 1 and (layout.sequence_parallel or layout.tp == 1)
                yield replace(changed, sequence_parallel=keeps)


def _adjacent(size: int, total: int) -> list[int]:
    """Return the divisors of `total` next to `size`."""
    options = divisors(total)
    below, above = [d for d in options if d < size], [d for d in options if d > size]
    return below[-1:] + above[:1]


def _fitted(model: ModelSpec, layout: Layout) -> Layout:
    """Return the layout with its recomputed layers and chunks limited to what the change leaves."""
    vp = layout.vp if layout.pp > 1 else 1
    if layout.recompute != "full/block":
        return replace(layout, vp=vp)
    chunk = layers_per_chunk(model.num_layers, pp=layout.pp, vp=vp)
    if layout.recompute_layers < chunk:
        return replace(layout, vp=vp)
    return replace(layout, vp=vp, recompute="full/uniform", recompute_layers=1)


LEAST_GAIN = 0.005
"""The least gain of a near miss."""


def memory_misses(
    misses: list[PlannedLayout],
    best: PlannedLayout | None,
    *,
    risk: float,
    evaluate_neighbours: Callable[[Layout], list[PlannedLayout]],
) -> list[NearMiss]:
    """Return those that only memory forbids, with what would make each fit."""
    found = []
    for miss in (miss.with_room() for miss in misses):
        gain = math.inf if best is None else best.step_s / miss.step_s - 1
        if gain > LEAST_GAIN:
            hint, reason = _memory_hint(miss, evaluate_neighbours(miss.layout), risk, best), memory_reason(miss)
            found.append(NearMiss(planned=miss, obstacle=Obstacle.MEMORY, gain=gain, reason=reason, hint=hint))
    return found


def batch_misses(misses: list[PlannedLayout], best: PlannedLayout | None, global_batch: int) -> list[NearMiss]:
    """Return those that another global batch would allow; their gain is in tokens per second."""
    found = []
    for miss in misses:
        gain = math.inf if best is None else miss.tokens_per_s / best.tokens_per_s - 1
        if gain > LEAST_GAIN:
            speed = f"{miss.tokens_per_s_per_gpu:,.0f} tok/s/GPU with batch {miss.layout.global_batch}"
            reason = f"{speed}; {global_batch} is not divisible by its data-parallel ranks"
            hint = f"take batch {miss.layout.global_batch}"
            found.append(NearMiss(planned=miss, obstacle=Obstacle.BATCH, gain=gain, reason=reason, hint=hint))
    return found


def memory_reason(miss: PlannedLayout) -> str:
    """Return by how much a layout exceeds a GPU's memory, and its speed with enough."""
    fits_barely = miss.headroom_bytes >= 0
    what = f"{miss.oom_probability:.0%} likely to run out of memory" if fits_barely else "does not fit"
    return f"{what} ({miss.memory}); {format_seconds(miss.roomy_s)} per step with enough memory"


def _memory_hint(miss: PlannedLayout, steps: list[PlannedLayout], risk: float, best: PlannedLayout | None) -> str:
    fitting = [step for step in steps if step.oom_probability < risk]
    if not fitting:
        return f"{_more(miss)}; no single change makes it fit"
    step = min(fitting, key=lambda step: step.expected_s)
    cost = format_gain(step.step_s / miss.roomy_s - 1)
    found = f"{_more(miss)}, or {changes(miss.layout, step.layout)}: {format_seconds(step.step_s)} ({cost} time)"
    if best is None or step.step_s > best.step_s:
        return found
    return f"{found}, {'the best' if step.layout == best.layout else 'about as good as the best'}"


def _more(miss: PlannedLayout) -> str:
    """Return what makes a layout fit as it is: more memory where it has too little, else a higher risk."""
    if miss.headroom_bytes < 0:
        return f"needs {format_bytes(-miss.headroom_bytes)} more per GPU"
    return f"--risk {min(math.floor(miss.oom_probability * 100) + 1, 100) / 100:g} takes it"
