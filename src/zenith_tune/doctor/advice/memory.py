"""Which ways out of an out-of-memory there are, and what each costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.doctor.diagnosis_input import LEAST_GAIN, Advice, DiagnosisInput, Remedy
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.layouts.search_space import limits_of
from zenith_tune.planner.neighbours import neighbours
from zenith_tune.planner.plan import changes
from zenith_tune.planner.planner import Planner
from zenith_tune.units import GIB, format_bytes

LEAST_SLOWDOWN = 1.05
ENOUGH_SAVED = 0.97
"""What a change may leave of the memory that the run needs, at most: less is no relief."""


def full_memory_message(case: DiagnosisInput) -> str | None:
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


def full_memory(case: DiagnosisInput) -> Advice | None:
    """Return the change that leaves room at the least cost, where the memory is all but full."""
    finding = full_memory_message(case)
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


FSDP = "fsdp"


def has_whole_copies(case: DiagnosisInput) -> bool:
    """Tell whether each GPU holds the whole model and its optimizer, so that more GPUs make no room."""
    limits = limits_of(case.planner.job.framework.name)
    return not limits.sizes and not any(limits.zero_stages)


def sharded_elsewhere(case: DiagnosisInput) -> Remedy | None:
    """Return the job with weights, gradients and optimizer sharded over its GPUs, as FSDP and ZeRO-3 do."""
    at, planner = case.layout, case.planner
    if not has_whole_copies(case) or at.dp == 1:
        return None
    job = replace(planner.job, framework=load_framework(FSDP))
    # The run too as FSDP would make it: two frameworks' figures side by side would not tell what sharding costs.
    plain, *sharded = Planner(planner.model, planner.cluster, job).evaluate([at, *_ways(at)])
    fitting = [planned for planned in sharded if case.fits(planned)]
    chosen = min(fitting or sharded, key=lambda planned: planned.step_s if fitting else planned.memory_bytes)
    return Remedy(
        name="sharding",
        change=f"FSDP or ZeRO-3 in place of plain data parallelism, {changes(at, chosen.layout)}",
        planned=chosen,
        fits=bool(fitting),
        cost=chosen.roomy_s / plain.roomy_s - 1,
    )


def _ways(at: Layout) -> Iterator[Layout]:
    """Yield the sharded layouts, the run's own micro-batch and all that need less."""
    for size in divisors(at.micro_batch):
        whole = replace(at, zero=3, micro_batch=size)
        yield whole
        if at.recompute == "none":
            yield replace(whole, recompute="full/uniform", recompute_layers=1)


SHARDED = {1: "the optimizer is", 2: "optimizer and gradients are", 3: "optimizer, gradients and weights are"}


def remedies(case: DiagnosisInput) -> tuple[Remedy, ...]:
    """Return each way, whether it fits or not; those that fit come first, the quickest of them first."""
    at = case.layout
    found = [
        _remedy(case, "more micro-batches", _more_micro_batches(at), f"the micro-batch is {at.micro_batch} already"),
        _remedy(case, "recomputation", _recomputed(case), "every layer is recomputed already"),
        sharded_elsewhere(case) or _remedy(case, "sharding", _sharded(case), _why_not_sharded(at)),
        _remedy(case, "tensor parallelism", _wider(case), _why_not_wider(case)),
    ]
    return tuple(sorted(found, key=lambda remedy: (not remedy.fits, remedy.cost is None, remedy.cost or 0.0)))


def _remedy(case: DiagnosisInput, name: str, layouts: Iterator[Layout], why_none: str) -> Remedy:
    offered = list(layouts)
    legal = case.legal(offered)
    if not legal:
        # What rules forbid is told by its rule: mostly one that the run itself breaks.
        why_not = case.refusal(offered[0]) if offered else None
        return Remedy(name=name, change="", planned=None, fits=False, cost=None, why_not=why_not or why_none)
    fitting = [planned for planned in legal if case.fits(planned)]
    chosen = min(fitting, key=case.step_s) if fitting else min(legal, key=lambda planned: planned.memory_bytes)
    cost = (case.step_s(chosen) if fitting else chosen.roomy_s) / case.planned.roomy_s - 1
    change = changes(case.layout, chosen.layout)
    return Remedy(name=name, change=change, planned=chosen, fits=bool(fitting), cost=cost)


def _more_micro_batches(at: Layout) -> Iterator[Layout]:
    for size in divisors(at.micro_batch)[:-1]:
        yield replace(at, micro_batch=size)


def _recomputed(case: DiagnosisInput) -> Iterator[Layout]:
    at = case.layout
    if at.recompute.startswith("full/uniform"):
        return
    chunk = layers_per_chunk(case.planner.model.num_layers, pp=at.pp, vp=at.vp)
    if at.recompute == "none":
        yield replace(at, recompute="selective")
    least = at.recompute_layers + 1 if at.recompute == "full/block" else 1
    for layers in range(least, chunk):
        yield replace(at, recompute="full/block", recompute_layers=layers)
    yield replace(at, recompute="full/uniform", recompute_layers=1)


def _sharded(case: DiagnosisInput) -> Iterator[Layout]:
    stages = limits_of(case.planner.job.framework.name).zero_stages
    for stage in (stage for stage in stages if stage > case.layout.zero and case.layout.dp * case.layout.cp > 1):
        yield replace(case.layout, zero=stage)


def _why_not_sharded(at: Layout) -> str:
    if at.dp * at.cp == 1:
        return "there is one data-parallel rank, and nothing to shard over"
    what = SHARDED.get(at.zero)
    return f"{what} sharded already" if what else "the framework does not shard"


def _wider(case: DiagnosisInput) -> Iterator[Layout]:
    """Yield more tensor parallelism, at the expense of data parallelism, where NVLink reaches."""
    at = case.layout
    for factor in divisors(at.dp)[1:]:
        if at.tp * factor <= case.cluster.fast_domain:
            yield replace(at, tp=at.tp * factor, sequence_parallel=at.sequence_parallel or at.tp == 1)


def _why_not_wider(case: DiagnosisInput) -> str:
    at, size = case.layout, case.cluster.fast_domain
    if at.dp == 1:
        return "every GPU holds another part of the model already"
    if size <= at.tp:
        return f"NVLink joins {size} GPUs, and TP is {at.tp}" if size > 1 else "no NVLink joins the GPUs"
    return f"no size above {at.tp} fits into {size} GPUs that NVLink joins"
