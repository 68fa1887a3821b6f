"""Which ways out of an out-of-memory there are, and what each costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.doctor.advice import Remedy
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.doctor.sharded_elsewhere import sharded_elsewhere
from zenith_tune.layouts.divisors import divisors
from zenith_tune.layouts.framework_limits import limits_of
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.planning.changes import changes

SHARDED = {1: "the optimizer is", 2: "optimizer and gradients are", 3: "optimizer, gradients and weights are"}


def remedies(case: Case) -> tuple[Remedy, ...]:
    """Return each way, whether it fits or not; those that fit come first, the quickest of them first."""
    at = case.layout
    found = [
        _remedy(case, "more micro-batches", _more_micro_batches(at), f"the micro-batch is {at.micro_batch} already"),
        _remedy(case, "recomputation", _recomputed(case), "every layer is recomputed already"),
        sharded_elsewhere(case) or _remedy(case, "sharding", _sharded(case), _why_not_sharded(at)),
        _remedy(case, "tensor parallelism", _wider(case), _why_not_wider(case)),
    ]
    return tuple(sorted(found, key=lambda remedy: (not remedy.fits, remedy.cost is None, remedy.cost or 0.0)))


def _remedy(case: Case, name: str, layouts: Iterator[Layout], why_none: str) -> Remedy:
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


def _recomputed(case: Case) -> Iterator[Layout]:
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


def _sharded(case: Case) -> Iterator[Layout]:
    stages = limits_of(case.planner.job.framework.name).zero_stages
    for stage in (stage for stage in stages if stage > case.layout.zero and case.layout.dp * case.layout.cp > 1):
        yield replace(case.layout, zero=stage)


def _why_not_sharded(at: Layout) -> str:
    if at.dp * at.cp == 1:
        return "there is one data-parallel rank, and nothing to shard over"
    what = SHARDED.get(at.zero)
    return f"{what} sharded already" if what else "the framework does not shard"


def _wider(case: Case) -> Iterator[Layout]:
    """Yield more tensor parallelism, at the expense of data parallelism, where NVLink reaches."""
    at = case.layout
    for factor in divisors(at.dp)[1:]:
        if at.tp * factor <= case.cluster.fast_domain:
            yield replace(at, tp=at.tp * factor, sequence_parallel=at.sequence_parallel or at.tp == 1)


def _why_not_wider(case: Case) -> str:
    at, size = case.layout, case.cluster.fast_domain
    if at.dp == 1:
        return "every GPU holds another part of the model already"
    if size <= at.tp:
        return f"NVLink joins {size} GPUs, and TP is {at.tp}" if size > 1 else "no NVLink joins the GPUs"
    return f"no size above {at.tp} fits into {size} GPUs that NVLink joins"
