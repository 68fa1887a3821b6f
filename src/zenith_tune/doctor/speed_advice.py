"""Advice on what makes a step slow: micro-batches, links, the pipeline's bubble, recomputation.

Legend: p stages, m micro-batches, v chunks per stage. Of a step of one-forward-one-backward, (p-1)/(m+p-1) is spent
waiting; interleaving makes it (p-1)/(vm+p-1) (Narayanan et al., "Efficient Large-Scale Language Model Training on GPU
Clusters", SC 2021, section 2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from zenith_tune.describe.cluster_spec import LinkSpec
from zenith_tune.doctor.diagnosis_input import Advice, DiagnosisInput
from zenith_tune.layouts.layout import Layout, divisors
from zenith_tune.layouts.pipeline import layers_per_chunk
from zenith_tune.layouts.search_space import limits_of
from zenith_tune.planner.limits import MAX_BATCH
from zenith_tune.planner.plan import PlannedLayout, changes
from zenith_tune.units import format_bytes

STEP_SHARE = "share of a step"
LEAST_SHARE = 0.1
"""Least share of a step that is named as a cause."""
IMPLICIT_DEFAULT = "implicit_default"
SLOW_TENSOR_LINK = "slow_tensor_link"


def implicit_default(run: DiagnosisInput) -> Iterator[Advice]:
    """Yield the gain of stating a size, even a loss: the run is not the one that was meant."""
    for unasked in run.origin.unasked:
        change: dict[str, Any] = {unasked.name: unasked.meant}
        for meant in run.fitting([replace(run.layout, **change)]):
            yield Advice(
                name=IMPLICIT_DEFAULT,
                number=float(unasked.size),
                unit="ranks",
                finding=unasked.finding,
                change=f"{changes(run.layout, meant.layout)}: {unasked.hint}",
                planned=meant,
                gain=run.gain(meant),
            )


def implicit_default_lines(run: DiagnosisInput) -> Iterator[str]:
    """Yield the finding of each default size, without a plan."""
    yield from (f"{unasked.finding}: {unasked.hint}" for unasked in run.origin.unasked)


LEAST_SAVING = 0.03
"""Least share of the work that a larger micro-batch must save to be named as the cause."""
ALL_BUT = 0.01


def small_micro_batch(run: DiagnosisInput) -> Advice | None:
    """Advise the micro-batch that fills the GPU, where that makes a step shorter as a whole."""
    layout = run.layout
    sizes = [size for size in divisors(layout.global_batch // layout.dp) if size > layout.micro_batch]
    fitting = run.fitting(replace(layout, micro_batch=size) for size in sizes)
    best = max((run.gain(each) for each in fitting), default=0.0)
    # The smallest that is nearly as fast: larger ones only take memory.
    better = next((each for each in fitting if run.gain(each) >= best - ALL_BUT), run.planned)
    saved = 1 - _work_s(better) / _work_s(run.planned)
    if saved < LEAST_SAVING:
        return None
    tokens = f"{layout.micro_batch * run.planner.job.seq_len // layout.cp:,} tokens"
    ranks = f" on each of {layout.tp} tensor-parallel ranks" if layout.tp > 1 else ""
    size = f"a micro-batch of {layout.micro_batch} ({tokens}{ranks})"
    finding = f"{size} does not fill the GPU: the same work takes {saved:.0%} less at {better.layout.micro_batch}"
    return run.advise("small_micro_batch", run.worthwhile([better]), saved, "share of the work", finding)


def _work_s(planned: PlannedLayout) -> float:
    """Return the seconds of a step that are work rather than waiting or sending."""
    return sum(planned.time_parts.get(name, 0.0) for name in ("compute", "recompute", "overhead"))


def slow_tensor_link(run: DiagnosisInput) -> Advice | None:
    """Advise tensor parallelism inside an NVLink island: it sends in every layer, and waits for the slowest link."""
    if (finding := slow_tensor_message(run)) is None:
        return None
    better = run.fastest(_inside(run.layout, run.cluster.fast_domain))
    return run.advise(SLOW_TENSOR_LINK, better, run.share("tp"), STEP_SHARE, finding)


def slow_tensor_message(run: DiagnosisInput) -> str | None:
    """Return the cost of tensor parallelism beyond NVLink, and its link; None where it stays within."""
    layout, cluster = run.layout, run.cluster
    if layout.tp <= cluster.fast_domain:
        return None
    nodes = -(-layout.tp // cluster.gpus_per_node)
    where = f"NVLink joins {cluster.fast_domain} GPUs" if cluster.fast_domain > 1 else "no NVLink joins the GPUs"
    link, way = (cluster.network, f"over {nodes} nodes") if nodes > 1 else (cluster.node_link, "over a slow link")
    over = f"{where}, TP{layout.tp} runs over {link.bytes_per_s / 1e9:g} GB/s"
    return f"{run.share('tp'):.0%} of a step is tensor parallelism {way}: {over}"


def _inside(layout: Layout, size: int) -> Iterator[Layout]:
    """Yield smaller sizes, with the freed ranks in the pipeline, in data parallelism or in both."""
    for tp in (tp for tp in divisors(layout.tp) if tp <= size):
        for stages in divisors(layout.tp // tp):
            sequence_parallel = layout.sequence_parallel and tp > 1
            smaller = replace(layout, tp=tp, pp=layout.pp * stages, sequence_parallel=sequence_parallel)
            for each in {smaller, replace(smaller, zero=max(layout.zero, 1))}:
                yield each
                yield fully_recomputed(each)


def fully_recomputed(layout: Layout) -> Layout:
    """Return a layout with every layer recomputed, which needs the least memory."""
    return replace(layout, recompute="full/uniform", recompute_layers=1)


def data_parallel_traffic(run: DiagnosisInput) -> Advice | None:
    """Advise what sends less, where a tenth of a step or more is spent on it."""
    share = run.share("dp")
    if share < LEAST_SHARE:
        return None
    seconds = run.planned.time_parts["dp"]
    less = [each for each in run.fitting(_less_traffic(run)) if each.time_parts["dp"] < seconds]
    finding = f"{share:.0%} of a step is data-parallel communication: {_traffic(run)}"
    return run.advise("data_parallel_traffic", run.worthwhile(less), share, STEP_SHARE, finding)


def _traffic(run: DiagnosisInput) -> str:
    layout, link = run.layout, f"over {_data_link(run).bytes_per_s / 1e9:g} GB/s"
    if layout.zero == 3:
        many = layout.num_micro_batches
        when = f"again for each of their {many} micro-batches" if many > 1 else "for their one micro-batch"
        return f"{layout.dp} ranks gather the weights {when}, {link}"
    return f"{layout.dp} ranks sum their gradients, {link}"


def _data_link(run: DiagnosisInput) -> LinkSpec:
    """Return the slowest link between data-parallel ranks, which span all GPUs."""
    cluster, num_gpus = run.cluster, run.layout.num_gpus
    if num_gpus <= cluster.fast_domain:
        return cluster.fast_link
    return cluster.node_link if num_gpus <= cluster.gpus_per_node else cluster.network


def _less_traffic(run: DiagnosisInput) -> Iterator[Layout]:
    """Yield fewer and larger micro-batches and other stages of sharding, with recomputation to make room for them."""
    layout = run.layout
    stages = {layout.zero, *limits_of(run.planner.job.framework.name).zero_stages}
    for size in (size for size in divisors(layout.global_batch // layout.dp) if size >= layout.micro_batch):
        for stage in sorted(stages):
            larger = replace(layout, micro_batch=size, zero=stage)
            yield larger
            yield fully_recomputed(larger)


def bubble_share(*, p: int, m: int, v: int = 1) -> float:
    """Return the share of a step in which a stage waits."""
    return (p - 1) / (v * m + p - 1)


def pipeline_bubble(run: DiagnosisInput) -> Advice | None:
    """Advise what makes the bubble smaller, where it is a tenth of a step or more."""
    layout = run.layout
    p, m, v = layout.pp, layout.num_micro_batches, layout.vp
    share = bubble_share(p=p, m=m, v=v)
    if share < LEAST_SHARE:
        return None
    better, caution = run.fastest(_smaller_bubble(run)), ""
    if better is None:
        larger = replace(layout, global_batch=layout.global_batch * 2)
        better = run.fastest([larger] if larger.global_batch <= MAX_BATCH else [])
        caution = "a larger global batch is another training: its learning rate has to follow"
    formula, stages = ("(p-1)/(vm+p-1)", f"{p} stages of {v} chunks") if v > 1 else ("(p-1)/(m+p-1)", f"{p} stages")
    planned = f"the plan's {run.share('bubble'):.0%} includes uneven stages and the rest of the step"
    finding = f"{share:.0%} of a step is pipeline bubble: {formula} with {stages} and {m} micro-batches; {planned}"
    return run.advise("pipeline_bubble", better, share, STEP_SHARE, finding, caution=caution)


def _smaller_bubble(run: DiagnosisInput) -> Iterator[Layout]:
    """Yield fewer stages, more chunks and more micro-batches of the same global batch."""
    layout, num_layers = run.layout, run.planner.model.num_layers
    for size in divisors(layout.micro_batch):
        smaller = replace(layout, micro_batch=size)
        yield smaller
        for vp in range(layout.vp, num_layers // layout.pp + 1):
            chunk = layers_per_chunk(num_layers, pp=layout.pp, vp=vp)
            if layout.recompute != "full/block" or layout.recompute_layers <= chunk:
                yield replace(smaller, vp=vp)
        for pp in divisors(layout.pp)[:-1]:
            yield replace(smaller, pp=pp, vp=1)
            if pp > 1:
                yield replace(smaller, pp=pp)


def needless_recompute(run: DiagnosisInput) -> Advice | None:
    """Advise the least recomputation, where the GPUs have the memory to keep more layers."""
    layout = run.layout
    if not layout.recompute.startswith("full"):
        return None
    # Smaller micro-batches keep less, which may cost less than recomputation.
    smaller = (replace(layout, micro_batch=size) for size in divisors(layout.micro_batch)[:-1])
    better = run.fastest(_less_recompute(run, layout)) or run.fastest(
        each for less in smaller for each in _less_recompute(run, less)
    )
    share, left = run.share("recompute"), format_bytes(run.planned.capacity_bytes - run.device_bytes)
    finding = f"{share:.0%} of a step recomputes layers, while {left} of each GPU's memory are left"
    return run.advise("needless_recompute", better, share, STEP_SHARE, finding)


def _less_recompute(run: DiagnosisInput, layout: Layout) -> Iterator[Layout]:
    yield replace(layout, recompute="none", recompute_layers=0)
    chunk = layers_per_chunk(run.planner.model.num_layers, pp=layout.pp, vp=layout.vp)
    most = layout.recompute_layers if layout.recompute == "full/block" else chunk
    for layers in range(1, most):
        yield replace(layout, recompute="full/block", recompute_layers=layers)


CORE = "core_attn"
LEAST_SAVED = 0.03
"""Least share of the GPU's memory that recomputation frees without being idle."""
LEAST_FREE_GAIN = 0.003


def idle_recompute(run: DiagnosisInput) -> Advice | None:
    """Advise against recomputing attention's core with flash attention, which keeps none of it.

    Megatron-LM warns of it; in its issue 1225 selective recomputation saved 0.6 of 25 GB.
    """
    layout, modules = run.layout, run.recompute_modules or (CORE,)
    own_meaning = run.planner.job.framework.selective_share  # "selective" differs from Megatron's there
    if layout.recompute != "selective" or not layout.flash_attention or own_meaning or modules != (CORE,):
        return None
    (without,) = run.planner.evaluate([replace(layout, recompute="none")])
    saved = max(without.memory_bytes - run.planned.memory_bytes, 0.0)
    if not run.fits(without) or saved >= LEAST_SAVED * without.capacity_bytes:
        return None
    what = f"{run.share('recompute'):.1%} of a step recomputes the core of attention"
    finding = f"{what} and saves {format_bytes(saved)}: flash attention keeps none of it"
    better = run.worthwhile([without], least_gain=LEAST_FREE_GAIN)
    return run.advise("idle_recompute", better, saved, "bytes saved", finding)
