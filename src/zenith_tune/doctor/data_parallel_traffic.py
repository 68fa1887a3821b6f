"""Data-parallel ranks that wait for weights and gradients of one another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.doctor.advice import LEAST_GAIN, Advice
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.layouts.divisors import divisors
from zenith_tune.layouts.framework_limits import limits_of
from zenith_tune.layouts.layout import Layout
from zenith_tune.planning.changes import changes

LEAST_SHARE = 0.1


def data_parallel_traffic(case: Case) -> Advice | None:
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


def _what(case: Case) -> str:
    at, link = case.layout, f"over {_link(case).bytes_per_s / 1e9:g} GB/s"
    if at.zero == 3:
        many = at.num_micro_batches
        when = f"anew for each of their {many} micro-batches" if many > 1 else "for their one micro-batch"
        return f"{at.dp} ranks gather the weights {when}, {link}"
    return f"{at.dp} ranks sum their gradients, {link}"


def _link(case: Case) -> LinkSpec:
    """Return the slowest link between data-parallel ranks, which are as far apart as any."""
    cluster, num_gpus = case.cluster, case.layout.num_gpus
    if num_gpus <= cluster.fast_domain:
        return cluster.fast_link
    return cluster.node_link if num_gpus <= cluster.gpus_per_node else cluster.network


def _less(case: Case) -> Iterator[Layout]:
    """Yield fewer and larger micro-batches and other stages of sharding, with recomputation to make room for them."""
    at = case.layout
    stages = {at.zero, *limits_of(case.planner.job.framework.name).zero_stages}
    for size in (size for size in divisors(at.global_batch // at.dp) if size >= at.micro_batch):
        for stage in sorted(stages):
            larger = replace(at, micro_batch=size, zero=stage)
            yield larger
            yield replace(larger, recompute="full/uniform", recompute_layers=1)
