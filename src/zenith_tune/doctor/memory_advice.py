"""Advice on memory: the cost of a full one, and the ways to need less with the cost of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.doctor.diagnosis_input import Advice, DiagnosisInput, Remedy
from zenith_tune.doctor.speed_advice import fully_recomputed
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.layouts.search_space import limits_of
from zenith_tune.planner.plan import changes
from zenith_tune.planner.planner import Planner
from zenith_tune.units import GIB, format_bytes

LEAST_SLOWDOWN = 1.05
ENOUGH_SAVED = 0.97
"""Most of the run's memory that a change may need to count as relief."""


def full_memory_message(run: DiagnosisInput) -> str | None:
    """Return how full the memory is and what that costs, where it is nearly full."""
    longer = run.slowdown(run.device_bytes)
    if longer < LEAST_SLOWDOWN:
        return None
    capacity = run.planned.capacity_bytes
    size = f"{run.device_bytes / GIB:.1f} of {format_bytes(capacity)}"
    how = "measured" if run.measured.peak_bytes is not None else "planned"
    thrash = f"the allocator frees and claims blocks in every step, estimated to take {longer:.1f} times as long"
    return f"the memory is {run.device_bytes / capacity:.1%} full ({size}, {how}): {thrash}"


def full_memory(run: DiagnosisInput) -> Advice | None:
    """Advise the change that frees memory at the least cost, where it is nearly full."""
    finding = full_memory_message(run)
    if finding is None:
        return None
    roomy = [each for each in run.neighbours if each.memory_bytes <= ENOUGH_SAVED * run.planned.memory_bytes]
    number = run.device_bytes / run.planned.capacity_bytes
    return run.advise("full_memory", run.worthwhile(roomy), number, "share of the GPU's memory", finding)


FSDP = "fsdp"


def has_whole_copies(run: DiagnosisInput) -> bool:
    """Tell whether each GPU holds the whole model and its optimizer, so that more GPUs do not help."""
    limits = limits_of(run.planner.job.framework.name)
    return not limits.sizes and not any(limits.zero_stages)


def sharded_elsewhere(run: DiagnosisInput) -> Remedy | None:
    """Return the job with weights, gradients and optimizer sharded over its GPUs, as FSDP and ZeRO-3 do."""
    layout, planner = run.layout, run.planner
    if not has_whole_copies(run) or layout.dp == 1:
        return None
    job = replace(planner.job, framework=load_framework(FSDP))
    # The run is estimated with FSDP too: figures of two frameworks would not show the cost of sharding.
    plain, *sharded = Planner(planner.model, planner.cluster, job).evaluate([layout, *_ways(layout)])
    fitting = [planned for planned in sharded if run.fits(planned)]
    chosen = min(fitting or sharded, key=lambda planned: planned.expected_s if fitting else planned.memory_bytes)
    return Remedy(
        name="sharding",
        change=f"FSDP or ZeRO-3 in place of plain data parallelism, {changes(layout, chosen.layout)}",
        planned=chosen,
        fits=bool(fitting),
        cost=chosen.roomy_s / plain.roomy_s - 1,
    )


def _ways(layout: Layout) -> Iterator[Layout]:
    """Yield the sharded layouts with the run's own micro-batch and smaller ones."""
    for size in divisors(layout.micro_batch):
        whole = replace(layout, zero=3, micro_batch=size)
        yield whole
        if layout.recompute == "none":
            yield fully_recomputed(whole)


SHARDED = {1: "the optimizer is", 2: "optimizer and gradients are", 3: "optimizer, gradients and weights are"}


def remedies(run: DiagnosisInput) -> tuple[Remedy, ...]:
    """Return each way, whether it fits or not; those that fit come first, the fastest of them first."""
    layout = run.layout
    smaller = (replace(layout, micro_batch=size) for size in divisors(layout.micro_batch)[:-1])
    found = [
        _remedy(run, "more micro-batches", smaller, f"the micro-batch is {layout.micro_batch} already"),
        _remedy(run, "recomputation", _recomputed(run), "every layer is recomputed already"),
        sharded_elsewhere(run) or _remedy(run, "sharding", _sharded(run), _why_not_sharded(layout)),
        _remedy(run, "tensor parallelism", _wider(run), _why_not_wider(run)),
    ]
    return tuple(sorted(found, key=lambda remedy: (not remedy.fits, remedy.cost is None, remedy.cost or 0.0)))


def _remedy(run: DiagnosisInput, name: str, layouts: Iterator[Layout], why_none: str) -> Remedy:
    offered = list(layouts)
    legal = run.legal(offered)
    if not legal:
        # The reason is the rule that forbids it, mostly one that the run itself breaks.
        why_not = run.refusal(offered[0]) if offered else None
        return Remedy(name=name, change="", planned=None, fits=False, cost=None, why_not=why_not or why_none)
    fitting = [planned for planned in legal if run.fits(planned)]
    chosen = min(fitting, key=run.step_s) if fitting else min(legal, key=lambda planned: planned.memory_bytes)
    cost = (run.step_s(chosen) if fitting else chosen.roomy_s) / run.planned.roomy_s - 1
    change = changes(run.layout, chosen.layout)
    return Remedy(name=name, change=change, planned=chosen, fits=bool(fitting), cost=cost)


def _recomputed(run: DiagnosisInput) -> Iterator[Layout]:
    layout = run.layout
    if layout.recompute.startswith("full/uniform"):
        return
    chunk = layers_per_chunk(run.planner.model.num_layers, pp=layout.pp, vp=layout.vp)
    if layout.recompute == "none":
        yield replace(layout, recompute="selective")
    least = layout.recompute_layers + 1 if layout.recompute == "full/block" else 1
    for layers in range(least, chunk):
        yield replace(layout, recompute="full/block", recompute_layers=layers)
    yield fully_recomputed(layout)


def _sharded(run: DiagnosisInput) -> Iterator[Layout]:
    stages = limits_of(run.planner.job.framework.name).zero_stages
    for stage in (stage for stage in stages if stage > run.layout.zero and run.layout.dp * run.layout.cp > 1):
        yield replace(run.layout, zero=stage)


def _why_not_sharded(layout: Layout) -> str:
    if layout.dp * layout.cp == 1:
        return "there is one data-parallel rank, and nothing to shard over"
    what = SHARDED.get(layout.zero)
    return f"{what} sharded already" if what else "the framework does not shard"


def _wider(run: DiagnosisInput) -> Iterator[Layout]:
    """Yield more tensor parallelism at the expense of data parallelism, within NVLink."""
    layout = run.layout
    for factor in divisors(layout.dp)[1:]:
        if layout.tp * factor <= run.cluster.fast_domain:
            yield replace(layout, tp=layout.tp * factor, sequence_parallel=layout.sequence_parallel or layout.tp == 1)


def _why_not_wider(run: DiagnosisInput) -> str:
    layout, size = run.layout, run.cluster.fast_domain
    if layout.dp == 1:
        return "every GPU holds another part of the model already"
    if size <= layout.tp:
        return f"NVLink joins {size} GPUs, and TP is {layout.tp}" if size > 1 else "no NVLink joins the GPUs"
    return f"no size above {layout.tp} fits into {size} GPUs that NVLink joins"
