"""Sharding for a run of plain data parallelism, whose framework has none: the same job with FSDP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from zenith_tune.describe.framework_catalog import load_framework
from zenith_tune.doctor.advice import Remedy
from zenith_tune.doctor.diagnosis_input import Case
from zenith_tune.layouts.divisors import divisors
from zenith_tune.layouts.framework_limits import limits_of
from zenith_tune.layouts.layout import Layout
from zenith_tune.planner.planner import Planner
from zenith_tune.planning.changes import changes

FSDP = "fsdp"


def has_whole_copies(case: Case) -> bool:
    """Tell whether each GPU holds the whole model and its optimizer, so that more GPUs make no room."""
    limits = limits_of(case.planner.job.framework.name)
    return not limits.sizes and not any(limits.zero_stages)


def sharded_elsewhere(case: Case) -> Remedy | None:
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
