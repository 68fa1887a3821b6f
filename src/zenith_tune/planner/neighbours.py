"""The layouts one step away from a layout: one size changed, the others kept, data parallelism making up for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from zenith_tune.describe.job_spec import JobSpec
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.layouts.divisors import divisors
from zenith_tune.layouts.framework_limits import limits_of
from zenith_tune.layouts.layout import Layout
from zenith_tune.layouts.layout_rules import broken_rules
from zenith_tune.layouts.pipeline import is_even, layers_per_chunk
from zenith_tune.layouts.search_space import SearchSpace

SIZES = ("tp", "pp", "cp", "ep", "etp")


def neighbours(model: ModelSpec, job: JobSpec, layout: Layout, space: SearchSpace | None = None) -> list[Layout]:
    """Return every legal layout one step away that a space has."""
    inside = space or SearchSpace()
    steps = {*_sizes(layout), *_chunks(model, layout), *_micro_batches(layout), *_recompute(model, layout)}
    steps |= {replace(layout, zero=stage) for stage in limits_of(job.framework.name).zero_stages}
    steps |= {replace(layout, sequence_parallel=not layout.sequence_parallel)}
    legal = [_fitted(model, step) for step in steps - {layout}]
    return sorted(
        {step for step in legal if _is_in(inside, model, step) and not broken_rules(model, job, step)} - {layout},
        key=str,
    )


def _is_in(space: SearchSpace, model: ModelSpec, layout: Layout) -> bool:
    """Tell whether a layout keeps the bounds and the given values of a space, and is cut as it allows."""
    values: dict[str, int | str] = {name: getattr(layout, name) for name in (*SIZES, "vp", "dp", "zero")}
    values |= {"mbs": layout.micro_batch, "recompute": layout.recompute, "recompute_layers": layout.recompute_layers}
    values |= {"sp": int(layout.sequence_parallel), "flash": int(layout.flash_attention)}
    is_cut = space.uneven_splits or is_even(model.num_layers, pp=layout.pp, vp=layout.vp)
    is_kept = layout.recompute in space.recompute
    return is_cut and is_kept and all(space.allows(name, value) for name, value in values.items())


def _sizes(layout: Layout) -> Iterator[Layout]:
    for name in SIZES:
        for size in _beside(getattr(layout, name), layout.num_gpus):
            change: dict[str, Any] = {name: size}
            changed = replace(layout, **change)
            if layout.num_gpus % (changed.tp * changed.pp * changed.cp) == 0:
                # Sequence parallelism comes and goes with the tensor parallelism that carries it.
                keeps = changed.tp > 1 and (layout.sequence_parallel or layout.tp == 1)
                yield replace(changed, sequence_parallel=keeps)


def _chunks(model: ModelSpec, layout: Layout) -> Iterator[Layout]:
    for vp in range(1, model.num_layers // layout.pp + 1):
        if layout.pp > 1:
            yield replace(layout, vp=vp)


def _micro_batches(layout: Layout) -> Iterator[Layout]:
    for size in _beside(layout.micro_batch, layout.global_batch):
        yield replace(layout, micro_batch=size)


def _recompute(model: ModelSpec, layout: Layout) -> Iterator[Layout]:
    chunk = layers_per_chunk(model.num_layers, pp=layout.pp, vp=layout.vp)
    kinds = [("none", 0), ("selective", 0), ("full/uniform", 1), *(("full/block", n) for n in range(1, chunk))]
    for kind, number in kinds:
        yield replace(layout, recompute=kind, recompute_layers=number)


def _beside(size: int, total: int) -> list[int]:
    """Return the divisors of `total` next to `size`."""
    options = divisors(total)
    below, above = [d for d in options if d < size], [d for d in options if d > size]
    return below[-1:] + above[:1]


def _fitted(model: ModelSpec, layout: Layout) -> Layout:
    """Return the layout with no more recomputed layers and chunks than the change has left."""
    vp = layout.vp if layout.pp > 1 else 1
    if layout.recompute != "full/block":
        return replace(layout, vp=vp)
    chunk = layers_per_chunk(model.num_layers, pp=layout.pp, vp=vp)
    if layout.recompute_layers < chunk:
        return replace(layout, vp=vp)
    return replace(layout, vp=vp, recompute="full/uniform", recompute_layers=1)
