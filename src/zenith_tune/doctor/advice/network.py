"""Tensor parallelism that reaches beyond what NVLink joins: it sends in every layer, and waits for the slowest way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.doctor.advice import LEAST_GAIN, Advice
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.layouts.divisors import divisors
from zenith_tune.layouts.layout import Layout
from zenith_tune.planning.changes import changes


def slow_tensor_link(case: Case) -> Advice | None:
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
