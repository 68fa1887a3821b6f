"""Tensor parallelism that reaches beyond what NVLink joins: it sends in every layer, and waits for the slowest way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.doctor.diagnosis_input import LEAST_GAIN, Advice, DiagnosisInput
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.search_space import limits_of
from zenith_tune.planner.plan import changes


def slow_tensor_link(case: DiagnosisInput) -> Advice | None:
    """Return the fastest layout with tensor parallelism inside an NVLink island, where it is not."""
    at, size = case.layout, case.cluster.fast_domain
    if at.tp <= size:
        return None
    better = case.fastest(_inside(at, size))
    if better is None or case.gain(better) < LEAST_GAIN:
        return None
    share = case.planned.time_parts["tp"] / case.planned.step_s
    where = f"NVLink joins {size} GPUs" if size > 1 else "no NVLink joins the GPUs"
    rate = case.cluster.node_link if at.tp <= case.cluster.gpus_per_node else case.cluster.network
    link = f"{rate.bytes_per_s / 1e9:g} GB/s"
    return Advice(
        name="slow_tensor_link",
        number=share,
        unit="share of a step",
        finding=f"{share:.0%} of a step is tensor parallelism over a slow link: {where}, TP{at.tp} goes over {link}",
        change=changes(at, better.layout),
        planned=better,
        gain=case.gain(better),
    )


def _inside(at: Layout, size: int) -> Iterator[Layout]:
    """Yield smaller sizes, the ranks that they free going to the pipeline, to data parallelism or to both."""
    for tp in (tp for tp in divisors(at.tp) if tp <= size):
        for stages in divisors(at.tp // tp):
            smaller = replace(at, tp=tp, pp=at.pp * stages, sequence_parallel=at.sequence_parallel and tp > 1)
            sharded = {smaller, replace(smaller, zero=max(at.zero, 1))}
            for layout in sharded:
                yield layout
                yield replace(layout, recompute="full/uniform", recompute_layers=1)


LEAST_SHARE = 0.1


def data_parallel_traffic(case: DiagnosisInput) -> Advice | None:
    """Return what sends less, where a tenth of a step or more is spent on it."""
    at, seconds = case.layout, case.planned.time_parts["dp"]
    share = seconds / case.planned.step_s
    if share < LEAST_SHARE:
        return None
    less = [each for each in case.legal(_less(case)) if case.fits(each) and each.time_parts["dp"] < seconds]
    better = max(less, key=case.gain, default=None)
    if better is None or case.gain(better) < LEAST_GAIN:
        return None
    return Advice(
        name="data_parallel_traffic",
        number=share,
        unit="share of a step",
        finding=f"{share:.0%} of a step is data-parallel communication: {_what(case)}",
        change=changes(at, better.layout),
        planned=better,
        gain=case.gain(better),
    )


def _what(case: DiagnosisInput) -> str:
    at, link = case.layout, f"over {_link(case).bytes_per_s / 1e9:g} GB/s"
    if at.zero == 3:
        many = at.num_micro_batches
        when = f"anew for each of their {many} micro-batches" if many > 1 else "for their one micro-batch"
        return f"{at.dp} ranks gather the weights {when}, {link}"
    return f"{at.dp} ranks sum their gradients, {link}"


def _link(case: DiagnosisInput) -> LinkSpec:
    """Return the slowest link between data-parallel ranks, which are as far apart as any."""
    cluster, num_gpus = case.cluster, case.layout.num_gpus
    if num_gpus <= cluster.fast_domain:
        return cluster.fast_link
    return cluster.node_link if num_gpus <= cluster.gpus_per_node else cluster.network


def _less(case: DiagnosisInput) -> Iterator[Layout]:
    """Yield fewer and larger micro-batches and other stages of sharding, with recomputation to make room for them."""
    at = case.layout
    stages = {at.zero, *limits_of(case.planner.job.framework.name).zero_stages}
    for size in (size for size in divisors(at.global_batch // at.dp) if size >= at.micro_batch):
        for stage in sorted(stages):
            larger = replace(at, micro_batch=size, zero=stage)
            yield larger
            yield replace(larger, recompute="full/uniform", recompute_layers=1)
